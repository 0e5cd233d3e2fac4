// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package networking_test

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
	"github.com/hyperfleet/hyperfleet/networking/machine"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

// newMachine returns a machine of a pool.
func newMachine(namespace, pool, name string) *infrav1.KubevirtMachine {
	return &infrav1.KubevirtMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{infrav1.LabelNodePool: pool}},
		Spec: infrav1.KubevirtMachineSpec{
			VirtualMachineTemplate: runtime.RawExtension{Raw: []byte(`{"spec":{"runStrategy":"Always","template":{"spec":{
				"domain":{"devices":{"interfaces":[{"name":"machines","bridge":{}}]}},
				"networks":[{"name":"machines","multus":{"networkName":"machines"}}]}}}}`)},
			BootstrapNetworkConfig: &infrav1.VirtualMachineBootstrapNetworkConfig{
				Interface: "eno101", NetworkName: "machines", Subnets: []infrav1.AddressRange{"10.0.0.0/24"},
			},
		},
	}
}

// createWaitingMachine returns a machine of the pool that has no address for the given reason.
func (w *fixture) createWaitingMachine(pool, name, reason string) *infrav1.KubevirtMachine {
	w.t.Helper()

	m := newMachine(w.namespace, pool, name)
	w.must(env.Client.Create(w.t.Context(), m))
	meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{
		Type: infrav1.ConditionAddressesAllocated, Status: metav1.ConditionFalse, Reason: reason, ObservedGeneration: m.Generation,
	})
	w.must(env.Client.Status().Update(w.t.Context(), m))

	return m
}

// A restart does not change the order of the queue. Machines that waited before the restart are served
// before new machines, the oldest first.
func TestWaitingMachinesAreServedFirst(t *testing.T) {
	t.Parallel()

	w := &fixture{t: t, namespace: env.Namespace(t)}

	var waits []*infrav1.KubevirtMachine
	for i := range 5 {
		waits = append(waits, w.createWaitingMachine("full", fmt.Sprintf("waits-%d", i), alloc.ReasonExhausted))
	}

	slices.SortFunc(waits, func(a, b *infrav1.KubevirtMachine) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})

	// These machines are not in the pool's queue, because they do not wait for an address.
	w.createWaitingMachine("full", "no-network", "NetworkNotFound")
	w.createWaitingMachine("", "no-pool", alloc.ReasonExhausted)

	network, err := kubevirt.NetworkKey(waits[0])
	w.must(err)

	name := kubevirt.PoolName(w.namespace, "full")
	addresses := pools.New()
	w.must(machine.NewReader(env.Client)(t.Context(), addresses))

	free, err := alloc.NewPool(name, alloc.Spec{Addresses: []string{"10.0.0.10/32"}, PrefixLengthV4: 24})
	w.must(err)
	w.must(addresses.SetPool(pools.Pool{Network: network, Addresses: free}, nil))

	allocate := func(owner string) []netip.Prefix {
		got, err := addresses.Acquire(pools.Request{Network: network, Pool: name, Owner: owner, Wake: func() {}})

		var full *alloc.ExhaustedError
		if err != nil && !errors.As(err, &full) {
			t.Error(err)
		}

		return got
	}

	if status, _ := addresses.Status(name); status.Waiting+1 != len(waits) { // the pool woke the first
		t.Errorf("%d owners wait", status.Waiting)
	}

	for i, m := range waits {
		if got := allocate("new"); got != nil {
			t.Fatalf("the later machine has %v", got)
		}

		if next := i + 1; next < len(waits) && allocate(kubevirt.OwnerKey(waits[next])) != nil {
			t.Fatalf("%s has an address before its turn", waits[next].Name)
		}

		if got := allocate(kubevirt.OwnerKey(m)); got == nil {
			t.Fatalf("%s has no address, although it is its turn", m.Name)
		}

		addresses.Release(kubevirt.OwnerKey(m))
	}

	if got := allocate("new"); got == nil {
		t.Error("the later machine has no address after all others")
	}
}
