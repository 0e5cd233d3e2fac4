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
	// maxPasses is how often a bridge may be looked at from its creation until it is ready.
	maxPasses = 8
	// manyPatience bounds a wait for all of them.
	manyPatience = 10 * time.Minute
)

// Many bridges at once come to be ready in few passes each, and no event lists anything
// from the API server. That no list of the cache is without an index is checked when all
// tests are over.
func TestManyAtOnce(t *testing.T) { manyAtOnce(t, 10) } //nolint:paralleltest // it counts what all others would add to

// As many as an operator is to take.
func TestSoakManyAtOnce(t *testing.T) { //nolint:paralleltest // as above
	property.Soak(t)
	manyAtOnce(t, 200)
}

func manyAtOnce(t *testing.T, many int) {
	t.Helper()

	w := newWorld(t)
	w.patience = manyPatience
	bridges := make([]*v1alpha1.DPFHCPBridge, many)

	for i := range bridges {
		name := fmt.Sprintf("b%d", i)
		w.dpuCluster(name, hypershift.PhaseReady)

		bridges[i] = w.bridge(name)
		if i%2 == 0 {
			bridges[i] = w.exposed(name, fmt.Sprintf("10.5.1.%d", i+1))
		}
	}

	before := onStage.counted.lists()

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
		w.reaches(b, v1alpha1.PhaseReady)

		passes := onStage.counted.of(types.NamespacedName{Namespace: b.Namespace, Name: b.Name})
		most, all = max(most, passes), all+passes
	}

	lists := onStage.counted.lists() - before
	t.Logf("%d bridges: %.1f passes each until ready, %d at most; %d lists from the API server",
		many, float64(all)/float64(many), most, lists)

	if most > maxPasses {
		t.Errorf("%d passes over one bridge, at most %d are allowed", most, maxPasses)
	}

	if lists > 0 {
		t.Errorf("%d lists from the API server", lists)
	}
}
