// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/hosts/drift"
	"github.com/hyperfleet/hyperfleet/hosts/ssh"
	"github.com/hyperfleet/hyperfleet/test/heap"
)

// The outcome of a job is dropped after it was collected.
func TestCollectedOutcomesAreDropped(t *testing.T) { //nolint:paralleltest // the test measures the heap
	pool := NewWorkerPool(&ssh.Dialer{}, clock.RealClock{}, 1, time.Minute)
	pool.ctx = t.Context()

	heap.CheckNoLeak(t, "hosts", func(number int) {
		host, over := types.UID(strconv.Itoa(number)), make(chan struct{})

		// The target is invalid, so the job ends at once.
		if !pool.startJob(host, job{action: drift.Probe, enqueue: func() { close(over) }}) {
			t.Fatal("the pool did not start the job")
		}

		<-over

		if pool.finishedOutcome(host) == nil {
			t.Fatal("the job has no outcome")
		}

		pool.deleteFinished(host)
	})
}
