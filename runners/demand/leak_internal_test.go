// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/test/heap"
	"github.com/hyperfleet/hyperfleet/workload"
)

var errBroken = errors.New("broken")

type anySecret struct{}

func (anySecret) ReadValue(_ context.Context, extract v1alpha1.SecretKeySelector, _ string) (string, error) {
	return extract.Name, nil
}

// The state in memory of jobs, machines, secrets and senders is freed when they are deleted.
func TestStateOfDeletedObjectsIsFreed(t *testing.T) { //nolint:paralleltest // it measures the heap
	clk := clocktesting.NewFakeClock(time.Unix(1e9, 0))

	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	api := fake.NewClientBuilder().WithScheme(scheme).Build()

	senders := newReadLimiter(4)

	heap.CheckNoLeak(t, "turns of senders", func(number int) {
		done, err := senders.acquire(t.Context(), fmt.Sprintf("192.0.2.1:%d", number), func() {})
		if err != nil {
			t.Fatal(err)
		}

		done.release()
	})

	secrets := &secretCache{reader: anySecret{}, clock: clk}

	heap.CheckNoLeak(t, "secrets", func(number int) {
		clk.SetTime(clk.Now().Add(maxSecretAge))

		if _, err := secrets.get(t.Context(), v1alpha1.SecretKeySelector{Name: fmt.Sprintf("s%d", number)}, "ns", maxSecretAge); err != nil {
			t.Fatal(err)
		}
	})

	jobs := &JobReconciler{Client: api, Live: api, Clock: clk}

	heap.CheckNoLeak(t, "questions about jobs", func(number int) {
		name := types.NamespacedName{Namespace: "ns", Name: fmt.Sprintf("j%d", number)}
		jobs.confirmCalls.record(name, clk.Now())

		if _, err := jobs.Reconcile(t.Context(), reconcile.Request{NamespacedName: name}); err != nil {
			t.Fatal(err)
		}
	})

	sources := &Sources{Clock: clk}
	sources.setDefaults()

	heap.CheckNoLeak(t, "sources of pools", func(number int) {
		pool := loadedPool{Pool: Pool{Namespace: "ns", Name: fmt.Sprintf("p%d", number)}}

		sources.recordResult([]loadedPool{pool}, errBroken)
		sources.setConfigErrors(map[types.NamespacedName]error{pool.Key(): errBroken})
		sources.forgetPools(map[workload.Provider][]loadedPool{})
	})
}
