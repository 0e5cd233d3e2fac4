// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"fmt"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

// What is kept of a namespace ends with its last batch.
func TestBatchesLeaveNothingBehind(t *testing.T) {
	t.Parallel()

	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	c := fake.NewClientBuilder().WithScheme(scheme).Build()
	box := newInbox(&Ledger{Client: c}, clock.RealClock{})

	var all sync.WaitGroup

	for i := range 100 {
		for j := range 3 {
			all.Go(func() {
				if err := box.join(t.Context(), fmt.Sprintf("ns-%d", i), workload.Job{ID: fmt.Sprint(j)}); err != nil {
					t.Error(err)
				}
			})
		}
	}

	all.Wait()

	var (
		batches v1alpha1.RunnerJobBatchList
		jobs    int
	)

	if err := c.List(t.Context(), &batches); err != nil {
		t.Fatal(err)
	}

	for _, one := range batches.Items {
		jobs += len(one.Spec.Jobs)
	}

	// A turn is given back a moment after its batch is written.
	for done := false; !done; {
		box.mu.Lock()
		done = len(box.writing) == 0
		box.mu.Unlock()
	}

	if jobs != 300 || len(box.open) != 0 {
		t.Errorf("%d jobs were written, want 300; %d batches are open", jobs, len(box.open))
	}
}
