// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/rollout"
	"github.com/hyperfleet/hyperfleet/test/heap"
)

// The metrics of a fleet are deleted with the fleet.
func TestMetricsEndWithTheirFleets(t *testing.T) { //nolint:paralleltest // the test measures the heap
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	registry := prometheus.NewRegistry()

	metrics, err := NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}

	fleets := &Reconciler{Client: fake.NewClientBuilder().WithScheme(scheme).Build(), Metrics: metrics}

	heap.CheckNoLeak(t, "fleets", func(number int) {
		fleet := &v1alpha1.HostFleet{}
		fleet.Namespace, fleet.Name = "ns", fmt.Sprintf("f%d", number)
		metrics.set(fleet, rollout.Report{Converged: 1})

		name := types.NamespacedName{Namespace: fleet.Namespace, Name: fleet.Name}
		if _, err := fleets.Reconcile(t.Context(), reconcile.Request{NamespacedName: name}); err != nil {
			t.Fatal(err)
		}
	})

	if left, err := registry.Gather(); err != nil || len(left) > 0 {
		t.Errorf("%d metrics of deleted fleets remain (error %v)", len(left), err)
	}
}
