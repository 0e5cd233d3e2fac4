// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package networking_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
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

// Claims and machines that are deleted as soon as they are created keep no address of their pool.
func TestAddressesOfBriefMachinesAreReleased(t *testing.T) {
	t.Parallel()

	const attempts = 20

	w := newFixture(t)
	template := w.createTemplate("small", w.createCluster("c", nil), "claims", "10.0.1.10-10.0.1.11")
	w.waitForTemplateCondition(template, "True Ready")

	pool := w.newNodePool("brief", 0, "10.0.0.10-10.0.0.11")
	w.createPool(pool)

	for i := range attempts {
		patchObject(w, pool, func(p *infrav1.KubevirtNodePool) { p.Spec.Replicas = int32(1 - i%2) })

		claim := newMachineClaim(w.namespace, fmt.Sprintf("brief-%d", i), "small")
		env.Create(t, claim)
		w.must(env.Client.Delete(t.Context(), claim))
	}

	patchObject(w, pool, func(p *infrav1.KubevirtNodePool) { p.Spec.Replicas = 2 })

	var kept []*v1alpha1.MachineClaim

	for _, name := range []string{"kept-1", "kept-2"} {
		claim := newMachineClaim(w.namespace, name, "small")
		env.Create(t, claim)

		kept = append(kept, claim)
	}

	w.waitUntil("two machines and two claims have all addresses", func() bool {
		return w.countAllocated() == 2 && !slices.ContainsFunc(kept, func(claim *v1alpha1.MachineClaim) bool {
			return !meta.IsStatusConditionTrue(getClaim(t, claim).Status.Conditions, v1alpha1.ConditionAddressAllocated)
		})
	})
}
