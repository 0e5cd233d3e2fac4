// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/kit/property"
)

// manyTimeout bounds the wait for all bridges.
const manyTimeout = 10 * time.Minute

// TestParallelBridges checks that many bridges become ready at the same time with few reconciles that change
// nothing, and that no event lists objects from the API server. A slow machine spreads the changes of HyperShift,
// which lead to more reconciles then, because fewer changes fall into the delay of one reconcile. Each of them
// reports a change. When all tests are done, counts.check checks that
// every list of the cache uses an index.
func TestParallelBridges(t *testing.T) { testParallelBridges(t, 10) } //nolint:paralleltest // it counts calls, which other tests also make

// TestSoakParallelBridges uses as many bridges as an operator must support.
func TestSoakParallelBridges(t *testing.T) { //nolint:paralleltest // as above
	property.Soak(t)
	testParallelBridges(t, 200)
}

func testParallelBridges(t *testing.T, many int) {
	t.Helper()

	w := newFixture(t)
	w.timeout = manyTimeout
	bridges := make([]*v1alpha1.DPFHCPBridge, many)

	for i := range bridges {
		name := fmt.Sprintf("b%d", i)
		w.createDPUCluster(name, hypershift.PhaseReady)

		bridges[i] = w.newBridge(name)
		if i%2 == 0 {
			bridges[i] = w.newExposedBridge(name, fmt.Sprintf("10.5.1.%d", i+1))
		}
	}

	before := shared.counts.listCount()

	var making sync.WaitGroup
	for _, b := range bridges {
		making.Go(func() {
			if err := env.Client.Create(t.Context(), b); err != nil {
				t.Error(err)
			}
		})
	}

	making.Wait()

	most, all, idle := 0, 0, 0

	for _, b := range bridges {
		w.waitForPhase(b, v1alpha1.PhaseReady)

		reconciles, unused := shared.counts.reconcileCount(types.NamespacedName{Namespace: b.Namespace, Name: b.Name})
		most, all, idle = max(most, reconciles), all+reconciles, idle+unused
	}

	lists := shared.counts.listCount() - before
	t.Logf("%d bridges: %.1f reconciles each until ready, %d at most, %d of all changed nothing; %d lists from the API server",
		many, float64(all)/float64(many), most, idle, lists)

	if idle > many {
		t.Errorf("%d reconciles of %d bridges changed nothing, at most one of each may", idle, many)
	}

	if lists > 0 {
		t.Errorf("%d lists from the API server", lists)
	}
}
