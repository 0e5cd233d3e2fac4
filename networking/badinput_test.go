// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package networking_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
)

// getRecordedAddresses returns the recorded addresses by the UIDs of the machines.
func (w *fixture) getRecordedAddresses() map[types.UID][]string {
	w.t.Helper()

	out := map[types.UID][]string{}
	for _, m := range w.listMachines() {
		out[m.UID] = m.Status.AllocatedBootstrapAddresses["eno101"]
	}

	return out
}

// A pool that becomes invalid and is corrected after a restart of the operator keeps its machines and their
// addresses.
func TestInvalidChangeKeepsAddresses(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	pool := w.newNodePool("spoiled", 2, "10.0.0.10-10.0.0.12")
	w.createPool(pool)
	w.waitUntil("two machines have addresses", func() bool { return w.countAllocated() == 2 })

	before := w.getRecordedAddresses()

	patchObject(w, pool, func(p *infrav1.KubevirtNodePool) {
		p.Spec.Replicas = 3
		p.Spec.BootstrapNetworkConfig.Addresses = []infrav1.AddressRange{"10.0.0.12-10.0.0.10"}
	})
	w.waitForCondition(pool, infrav1.ConditionValidNetworkConfig, "False InvalidAddresses")
	w.restart()
	w.waitForCondition(pool, "Stalled", "True InvalidAddresses")

	if diff := cmp.Diff(before, w.getRecordedAddresses()); diff != "" {
		t.Errorf("addresses changed: %s", diff)
	}

	// A machine that is deleted in the meantime releases its address.
	gone := w.listMachines()[0]
	w.must(env.Client.Delete(t.Context(), &gone, client.Preconditions{UID: &gone.UID}))
	w.waitUntil("one machine is left", func() bool { return len(w.listMachines()) == 1 })

	patchObject(w, pool, func(p *infrav1.KubevirtNodePool) {
		p.Spec.BootstrapNetworkConfig.Addresses = []infrav1.AddressRange{"10.0.0.10-10.0.0.12"}
	})
	w.waitUntil("all three machines have addresses", func() bool { return w.countAllocated() == 3 })

	for uid, addresses := range before {
		if now, there := w.getRecordedAddresses()[uid]; there && !cmp.Equal(now, addresses) {
			t.Errorf("addresses of a machine before %v, now %v", addresses, now)
		}
	}

	// A correction of a configuration that works also counts for further machines.
	patchObject(w, pool, func(p *infrav1.KubevirtNodePool) {
		p.Spec.Replicas = 5
		p.Spec.BootstrapNetworkConfig.Addresses = []infrav1.AddressRange{"10.0.0.10-10.0.0.20"}
	})
	w.waitUntil("all five machines have addresses", func() bool { return w.countAllocated() == 5 })
}

// After a person corrects the addresses of a pool and scales it down and up, its machines have addresses of the new range.
func TestMachinesGetCorrectedAddresses(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	pool := w.newNodePool("wrong", 1, "10.0.0.10/32")
	w.createPool(pool)
	w.waitUntil("the machine has an address", func() bool { return w.countAllocated() == 1 })

	patchObject(w, pool, func(p *infrav1.KubevirtNodePool) {
		p.Spec.BootstrapNetworkConfig.Addresses = []infrav1.AddressRange{"10.0.0.20/32"}
		p.Spec.Replicas = 0
	})
	w.waitUntil("no machine is left", func() bool { return len(w.listMachines()) == 0 })

	patchObject(w, pool, func(p *infrav1.KubevirtNodePool) { p.Spec.Replicas = 1 })
	w.waitUntil("the new machine has an address", func() bool { return w.countAllocated() == 1 })

	for _, addresses := range w.getRecordedAddresses() {
		if diff := cmp.Diff([]string{"10.0.0.20/16"}, addresses); diff != "" {
			t.Errorf("recorded addresses (-want +got):\n%s", diff)
		}
	}
}

// A pool that an autoscaler can scale beyond its addresses gets a warning and works.
func TestFewerAddressesThanMaxReplicas(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	pool := w.newNodePool("small", 1, "10.0.0.10-10.0.0.12")
	pool.Spec.MaxReplicas = new(int32(4))
	w.createPool(pool)
	w.waitForCondition(pool, infrav1.ConditionAddressesFewerThanReplicas, "True TooFewAddresses: the pool has addresses for 3 machines")
	w.waitUntil("the pool's machine has an address", func() bool { return w.countAllocated() == 1 })

	patchObject(w, pool, func(p *infrav1.KubevirtNodePool) { p.Spec.MaxReplicas = new(int32(3)) })
	w.waitForCondition(pool, infrav1.ConditionAddressesFewerThanReplicas, "False")
}

// A prefix length that no field sets is reported as a guess.
func TestGuessedPrefixLength(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	pool := w.newNodePool("guessed", 1, "10.0.0.10-10.0.0.14", "fd00::10-fd00::20")
	pool.Spec.BootstrapNetworkConfig.PrefixLengthV4 = 0
	w.createPool(pool)
	w.waitForCondition(pool, infrav1.ConditionPrefixLengthGuessed, "True Guessed: the prefix lengths of the machines' networks 10.0.0.0/28, fd00::/64 are guesses")

	patchObject(w, pool, func(p *infrav1.KubevirtNodePool) {
		p.Spec.BootstrapNetworkConfig.PrefixLengthV4, p.Spec.BootstrapNetworkConfig.PrefixLengthV6 = 24, 64
	})
	w.waitForCondition(pool, infrav1.ConditionPrefixLengthGuessed, "False")
}
