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

// What came of work at hosts is dropped when it is read.
func TestWorkEndsWithItsHosts(t *testing.T) { //nolint:paralleltest // it looks at the heap
	pool := NewWorkerPool(&ssh.Dialer{}, clock.RealClock{}, 1, time.Minute)
	pool.ctx = t.Context()

	heap.Ends(t, "hosts", func(number int) {
		host, over := types.UID(strconv.Itoa(number)), make(chan struct{})

		// There is no such target: the work is over at once.
		if !pool.begin(host, job{what: drift.Probe, enqueue: func() { close(over) }}) {
			t.Fatal("the pool does not work")
		}

		<-over

		if pool.outcome(host) == nil {
			t.Fatal("the work has no outcome")
		}

		pool.forget(host)
	})
}
