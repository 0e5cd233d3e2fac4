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

const (
	// maxReconciles is how many times a bridge may be reconciled from its creation until it is ready.
	maxReconciles = 8
	// manyTimeout bounds the wait for all of them.
	manyTimeout = 10 * time.Minute
)

// TestParallelBridges checks that many bridges become ready at the same time with few reconciles each, and
// that no event lists objects from the API server. When all tests are done, counts.check checks that
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

	most, all := 0, 0

	for _, b := range bridges {
		w.waitForPhase(b, v1alpha1.PhaseReady)

		passes := shared.counts.reconcileCount(types.NamespacedName{Namespace: b.Namespace, Name: b.Name})
		most, all = max(most, passes), all+passes
	}

	lists := shared.counts.listCount() - before
	t.Logf("%d bridges: %.1f passes each until ready, %d at most; %d lists from the API server",
		many, float64(all)/float64(many), most, lists)

	if most > maxReconciles {
		t.Errorf("%d reconciles of one bridge, at most %d are allowed", most, maxReconciles)
	}

	if lists > 0 {
		t.Errorf("%d lists from the API server", lists)
	}
}
