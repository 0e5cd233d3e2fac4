// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
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

// TestFormerOperations checks that the metric of operations has the former values in the label what.
func TestFormerOperations(t *testing.T) {
	t.Parallel()

	metrics, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}

	for operation, what := range map[drift.Action]string{
		drift.Probe: "Probe", drift.Connect: "Greet", drift.RemoveCredential: "Leave",
	} {
		metrics.observe("Mac", outcome{Outcome: drift.Outcome{Action: operation}}, "ok")

		former := prometheus.Labels{"operation": string(operation), "what": what}
		if metrics.duration.DeletePartialMatch(former) != 1 {
			t.Errorf("operation %s has no series with what=%q", operation, what)
		}
	}

	if n := testutil.CollectAndCount(metrics.duration); n != 0 {
		t.Errorf("the metric has %d other series", n)
	}
}
