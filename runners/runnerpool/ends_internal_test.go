// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/test/heap"
)

// What is remembered of pools ends with them.
func TestMemoriesEndWithTheirPools(t *testing.T) { //nolint:paralleltest // it looks at the heap
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	pools := &Reconciler{Client: fake.NewClientBuilder().WithScheme(scheme).Build()}

	heap.Ends(t, "pools", func(number int) {
		name := types.NamespacedName{Namespace: "ns", Name: fmt.Sprintf("p%d", number)}
		known := pools.memories.of(name)
		known.expectations.expect("claim", expected{made: time.Unix(1e9, 0)})
		known.startups.took = make([]time.Duration, recentStartups)

		if _, err := pools.Reconcile(t.Context(), reconcile.Request{NamespacedName: name}); err != nil {
			t.Fatal(err)
		}
	})
}
