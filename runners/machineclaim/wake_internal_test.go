// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"testing"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/watch"
)

// A hypervisor reports the machines of all operators. Claims in namespaces of others are not enqueued, because the
// cache fails to read them, and each would be tried again forever.
func TestMachinesOfOtherOperatorsWakeNoClaim(t *testing.T) {
	t.Parallel()

	for _, tc := range []struct {
		namespaces []string
		want       int
	}{{nil, 2}, {[]string{"team-a"}, 1}} {
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		t.Cleanup(queue.ShutDown)

		source := &watch.Source{}
		if err := source.Start(t.Context(), queue); err != nil {
			t.Fatal(err)
		}

		wake := NewWakeFunc(source, tc.namespaces)
		wake(hypervisor.Owner{Namespace: "team-a", Name: "linux-a"})
		wake(hypervisor.Owner{Namespace: "team-b", Name: "linux-b"})

		if queue.Len() != tc.want {
			t.Errorf("%d claims are enqueued for the namespaces %v, want %d", queue.Len(), tc.namespaces, tc.want)
		}
	}
}
