// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package networking_test

import (
	"errors"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/claims"
	"github.com/hyperfleet/hyperfleet/networking/pools"
	"github.com/hyperfleet/hyperfleet/test/heap"
)

// The registry keeps nothing of a deleted pool: no refused pools, no networks of these pools, and no owners
// whose requests failed.
func TestStateOfDeletedPoolsIsFreed(t *testing.T) { //nolint:paralleltest // it measures the heap
	b := pools.New()

	heap.CheckNoLeak(t, "pools", func(number int) {
		network, name := fmt.Sprintf("n%d", number), fmt.Sprintf("p%d", number)
		moved := network + "-moved"
		wake := func() {}

		setPool(t, b, newPool(t, network, name, "10.0.0.10-10.0.0.11"))

		var overlap *alloc.OverlapError
		if err := b.SetPool(newPool(t, network, "late", "10.0.0.11-10.0.0.12"), wake); !errors.As(err, &overlap) {
			t.Fatalf("a pool that overlaps: %v", err)
		}

		setPool(t, b, newPool(t, moved, "late", "10.0.0.11-10.0.0.12"))

		for _, owner := range []string{"a", "b", "c"} {
			_, _ = b.Acquire(pools.Request{Network: network, Pool: name, Owner: owner, Wake: wake})
			_, _ = b.Acquire(pools.Request{Network: network + "-none", Pool: name, Owner: "none " + owner})
		}

		for _, owner := range []string{"a", "b", "c"} {
			b.Release(owner)
		}

		b.RemovePool(name)
		b.RemovePool("late")
	})
}

// The registry keeps nothing of a deleted template.
func TestStateOfDeletedTemplatesIsFreed(t *testing.T) { //nolint:paralleltest // it measures the heap
	registry := claims.NewRegistry(pools.New())
	cluster := &v1alpha1.HypervisorCluster{ObjectMeta: metav1.ObjectMeta{Name: "c"}}

	heap.CheckNoLeak(t, "templates", func(number int) {
		template := &v1alpha1.HypervisorMachineTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("t%d", number)}}
		template.Spec.Network = &v1alpha1.MachineNetwork{
			Mode: v1alpha1.NetworkModeStatic, Bridge: fmt.Sprintf("vmbr%d", number),
			Static: &v1alpha1.StaticNetwork{Pool: &v1alpha1.AddressPool{
				Addresses: []v1alpha1.AddressRange{"10.0.0.10-10.0.0.99"}, PrefixLengthV4: 24,
			}},
		}
		registry.Set(template, cluster, nil)
		registry.Remove(client.ObjectKeyFromObject(template))
	})
}
