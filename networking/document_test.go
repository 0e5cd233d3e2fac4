// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package networking_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
	"github.com/hyperfleet/hyperfleet/networking/nodepool"
	"github.com/hyperfleet/hyperfleet/networking/pools"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// Names that users see are those of document 002.
func TestDocumentNames(t *testing.T) {
	t.Parallel()

	for got, want := range map[string]string{
		v1alpha1.ConditionIPPoolExhausted: "KubevirtIPPoolExhausted", string(v1alpha1.KubevirtMachinePending): "Pending",
		kubevirt.Interface: "eno101",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// The metric has the name and the label of document 002.
func TestExhaustedMetric(t *testing.T) {
	t.Parallel()

	registry := pools.New()
	must.Do(t, registry.Rebuild(t.Context()))

	for _, name := range []string{"full", "free"} {
		pool, err := alloc.NewPool(name, alloc.Spec{Addresses: []string{"10.0.0.10/32"}, PrefixLengthV4: 24})
		must.Do(t, err)
		must.Do(t, registry.SetPool(pools.Pool{Network: "ci/" + name, Cluster: "cluster-" + name, Addresses: pool}, nil))
	}

	for _, owner := range []string{"a", "b", "c"} {
		_, err := registry.Acquire(pools.Request{Network: "ci/full", Pool: "full", Owner: owner, Wake: func() {}})
		if (err != nil) != (owner != "a") {
			t.Errorf("address of %s: %v", owner, err)
		}
	}

	want := `
# HELP kubevirt_ippool_exhausted Whether machines of a cluster wait for an address.
# TYPE kubevirt_ippool_exhausted gauge
kubevirt_ippool_exhausted{cluster="cluster-free"} 0
kubevirt_ippool_exhausted{cluster="cluster-full"} 1
`
	if err := testutil.CollectAndCompare(nodepool.NewCollector(registry), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

// If a pool no longer has static addresses, its new machines use DHCP, and its other machines keep their addresses.
func TestPoolTurnsToDHCP(t *testing.T) {
	w := newPoolFixture(t, 1, "10.0.1.0-10.0.1.9")

	made, _ := w.listRemaining()
	made[0].Status.Phase, made[0].Status.Ready = v1alpha1.KubevirtMachineRunning, true // a machine that waits is replaced
	w.must(env.Client.Status().Update(t.Context(), &made[0]))
	w.changePool(func(s *v1alpha1.KubevirtNodePoolSpec) { s.BootstrapNetworkConfig, s.Replicas = nil, 2 })
	w.requirePoolCondition(v1alpha1.ConditionValidNetworkConfig, "DHCP")

	static, dhcp := 0, 0

	there, _ := w.listRemaining()
	for i := range there {
		if there[i].Spec.BootstrapNetworkConfig == nil {
			dhcp++
		} else {
			static++
		}
	}

	if static != 1 || dhcp != 1 {
		t.Errorf("%d machines have static addresses, and %d use DHCP", static, dhcp)
	}
}

// The addresses of a machine are recorded under the name of its interface, whatever it is.
func TestAddressesAreRecordedByInterface(t *testing.T) {
	w := newMachineFixture(t)

	pool, err := alloc.NewPool(w.namespace+"/both", alloc.Spec{
		Addresses: []string{"10.0.1.10/32", "fd00::10/128"}, PrefixLengthV4: 24, PrefixLengthV6: 64,
	})
	w.must(err)
	w.must(w.addresses.SetPool(pools.Pool{Network: w.network, Addresses: pool}, nil))

	created := newMachine(w.namespace, "both", "a")
	created.Spec.BootstrapNetworkConfig.Interface = "ens123"
	w.must(env.Client.Create(t.Context(), created))
	w.reconcileMachine("a")

	want := map[string][]string{"ens123": {"10.0.1.10/24", "fd00::10/64"}}
	if diff := cmp.Diff(want, w.getMachine("a").Status.AllocatedBootstrapAddresses); diff != "" {
		t.Errorf("recorded addresses (-want +got):\n%s", diff)
	}
}

// The excluded addresses of a KubevirtNodePool are not allocated.
func TestExcludedAddressesOfANodePool(t *testing.T) {
	t.Parallel()

	nodePool := (&fixture{t: t, namespace: "ci"}).newNodePool("excluding", 4, "10.0.0.10-10.0.0.15")
	nodePool.Spec.BootstrapNetworkConfig.ExcludedAddresses = []v1alpha1.AddressRange{"10.0.0.10/32", "10.0.0.12-10.0.0.13"}

	pool, err := kubevirt.NewAddressPool(nodePool)
	must.Do(t, err)

	registry := pools.New()
	must.Do(t, registry.Rebuild(t.Context()))
	must.Do(t, registry.SetPool(pools.Pool{Network: "ci/a", Addresses: pool}, nil))

	var got []string

	for _, owner := range []string{"a", "b", "c", "d"} {
		addresses, err := registry.Acquire(pools.Request{Network: "ci/a", Pool: "ci/excluding", Owner: owner, Wake: func() {}})
		if (err != nil) != (owner == "d") {
			t.Errorf("address of %s: %v", owner, err)
		}

		for _, address := range addresses {
			got = append(got, address.String())
		}
	}

	if diff := cmp.Diff([]string{"10.0.0.11/16", "10.0.0.14/16", "10.0.0.15/16"}, got); diff != "" {
		t.Errorf("allocated addresses (-want +got):\n%s", diff)
	}
}

// With no more replicas than addresses, the pool is no longer exhausted. The machines with addresses stay.
func TestFewerReplicasEndExhaustion(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	pool := w.newNodePool("lowered", 3, "10.0.0.10-10.0.0.11")
	w.createPool(pool)
	w.waitUntil("all addresses are in use", func() bool { return w.countAllocated() == 2 })
	w.waitForCondition(pool, v1alpha1.ConditionIPPoolExhausted, "True PoolExhausted: waiting for an address: 1 machine")

	before := w.getRecordedAddresses()

	patchObject(w, pool, func(p *v1alpha1.KubevirtNodePool) { p.Spec.Replicas = 2 })
	w.waitForCondition(pool, v1alpha1.ConditionIPPoolExhausted, "False AddressesLeft")
	w.waitUntil("two machines are left", func() bool { return len(w.listMachines()) == 2 })

	for uid, addresses := range w.getRecordedAddresses() {
		if len(addresses) == 0 || !slices.Equal(addresses, before[uid]) {
			t.Errorf("a machine that is left has %v, and had %v", addresses, before[uid])
		}
	}
}

// A machine that somebody has stopped keeps its address, and gets no other one when it starts.
func TestStoppedMachineKeepsItsAddress(t *testing.T) {
	w := newMachineFixture(t)
	w.createMachine("a")
	w.createMachine("b")
	w.createMachine("c")
	w.reconcileMachine("a")
	w.reconcileMachine("b")

	vm := w.getVirtualMachine("a")
	w.must(unstructured.SetNestedField(vm.Object, "Stopped", "status", "printableStatus"))
	w.must(env.Client.Status().Update(t.Context(), vm))
	w.reconcileMachine("a")
	w.reconcileMachine("c")
	w.requireCondition("a", v1alpha1.ConditionVMReady, "Stopped", v1alpha1.KubevirtMachineStopped, "10.0.0.10/24")
	w.requireCondition("c", v1alpha1.ConditionAddressesAllocated, alloc.ReasonExhausted, v1alpha1.KubevirtMachinePending)

	w.startReconcilers() // a new process
	w.reconcileMachine("c")
	w.reconcileMachine("a")
	w.requireCondition("a", v1alpha1.ConditionVMReady, "Stopped", v1alpha1.KubevirtMachineStopped, "10.0.0.10/24")
	w.requireCondition("c", v1alpha1.ConditionAddressesAllocated, alloc.ReasonExhausted, v1alpha1.KubevirtMachinePending)
}

// Exclusions apply however their addresses are written.
func TestExclusionsInOtherForms(t *testing.T) {
	t.Parallel()

	pool, err := alloc.NewPool("p", alloc.Spec{
		Addresses: []string{"2001:db8::10-2001:db8::12"}, Excluded: []string{"2001:DB8:0:0::10/128", "2001:0db8::0011-2001:0DB8::0011"},
		PrefixLengthV6: 64,
	})
	must.Do(t, err)

	registry := pools.New()
	must.Do(t, registry.Rebuild(t.Context()))
	must.Do(t, registry.SetPool(pools.Pool{Network: "ci/a", Addresses: pool}, nil))

	got, err := registry.Acquire(pools.Request{Network: "ci/a", Pool: "p", Owner: "a", Wake: func() {}})
	if err != nil || len(got) != 1 || got[0].String() != "2001:db8::12/64" {
		t.Errorf("allocated %v: %v", got, err)
	}
}

// IPv6 has no broadcast address, so a machine can have the last address of a subnet.
func TestLastAddressOfAnIPv6Subnet(t *testing.T) {
	t.Parallel()

	for address, spec := range map[string]alloc.Spec{
		"2001:db8::ff/120": {Addresses: []string{"2001:db8::ff/128"}, PrefixLengthV6: 120},
		"":                 {Addresses: []string{"10.0.0.255/32"}, PrefixLengthV4: 24},
	} {
		pool, err := alloc.NewPool("p", spec)
		if address == "" {
			if err == nil || !strings.Contains(err.Error(), "broadcast address") {
				t.Errorf("pool of an IPv4 broadcast address: %v", err)
			}

			continue
		}

		must.Do(t, err)

		registry := pools.New()
		must.Do(t, registry.Rebuild(t.Context()))
		must.Do(t, registry.SetPool(pools.Pool{Network: "ci/a", Addresses: pool}, nil))

		got, err := registry.Acquire(pools.Request{Network: "ci/a", Pool: "p", Owner: "a", Wake: func() {}})
		if err != nil || len(got) != 1 || got[0].String() != address {
			t.Errorf("allocated %v: %v", got, err)
		}
	}
}
