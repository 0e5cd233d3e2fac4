// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
)

// newStaticSpec returns a spec with static addresses on a network.
func newStaticSpec(network string, subnets ...v1alpha1.AddressRange) v1alpha1.KubevirtMachineSpec {
	return v1alpha1.KubevirtMachineSpec{BootstrapNetworkConfig: &v1alpha1.VirtualMachineBootstrapNetworkConfig{
		Interface: "eno101", NetworkName: network, Subnets: subnets,
	}}
}

// newMachine returns a machine with an age in minutes.
func newMachine(name string, age int, how ...func(*v1alpha1.KubevirtMachine)) v1alpha1.KubevirtMachine {
	m := v1alpha1.KubevirtMachine{Spec: newStaticSpec("blue", "10.0.0.0/24")}
	m.Name = name
	m.CreationTimestamp = metav1.NewTime(time.Date(2026, 1, 1, 12, -age, 0, 0, time.UTC))
	m.Status.Phase = v1alpha1.KubevirtMachineProvisioning

	for _, change := range how {
		change(&m)
	}

	return m
}

func setReady(m *v1alpha1.KubevirtMachine) {
	m.Status.Ready, m.Status.Phase = true, v1alpha1.KubevirtMachineRunning
}

func setPending(m *v1alpha1.KubevirtMachine) { m.Status.Phase = v1alpha1.KubevirtMachinePending }

func setDeleted(m *v1alpha1.KubevirtMachine) { m.DeletionTimestamp = &metav1.Time{} }

func setAddress(m *v1alpha1.KubevirtMachine) {
	m.Status.AllocatedBootstrapAddresses = map[string][]string{"eno101": {"10.0.0.1/24"}}
}

func useDHCP(m *v1alpha1.KubevirtMachine) { m.Spec = v1alpha1.KubevirtMachineSpec{} }

func TestPlanChange(t *testing.T) {
	t.Parallel()

	blue := newStaticSpec("blue", "10.0.0.0/24")

	for _, tc := range []struct {
		why      string
		machines []v1alpha1.KubevirtMachine
		spec     v1alpha1.KubevirtMachineSpec
		replicas int
		create   int
		remove   []string
	}{
		{"no machines", nil, blue, 3, 3, nil},
		{"the desired number", []v1alpha1.KubevirtMachine{newMachine("a", 1), newMachine("b", 2)}, blue, 2, 0, nil},
		{"machines that are being deleted don't count", []v1alpha1.KubevirtMachine{newMachine("a", 1, setDeleted), newMachine("b", 2)}, blue, 2, 1, nil},
		{
			"machines without a VirtualMachine are deleted first, then machines that are not ready, then the newest",
			[]v1alpha1.KubevirtMachine{
				newMachine("old", 9, setReady), newMachine("older", 10, setReady), newMachine("new", 1, setReady), newMachine("coming", 2), newMachine("waiting", 3, setPending),
			},
			blue, 2, 0, []string{"waiting", "coming", "new"},
		},
		{"all are deleted", []v1alpha1.KubevirtMachine{newMachine("a", 1), newMachine("b", 2)}, blue, 0, 0, []string{"a", "b"}},
		{
			"a larger pool does not replace waiting machines",
			[]v1alpha1.KubevirtMachine{newMachine("a", 1, setPending)}, newStaticSpec("blue", "10.0.0.0/24", "10.0.1.0/24"), 1, 0, nil,
		},
		{
			"machines that wait on a former network are replaced",
			[]v1alpha1.KubevirtMachine{newMachine("a", 1, setPending), newMachine("b", 1, setPending, setAddress), newMachine("c", 1, setReady)},
			newStaticSpec("red", "10.0.0.0/24"), 3, 1, []string{"a"},
		},
		{
			"without static addresses waiting machines are replaced",
			[]v1alpha1.KubevirtMachine{newMachine("a", 1, setPending), newMachine("b", 1, setReady, setAddress)},
			v1alpha1.KubevirtMachineSpec{}, 2, 1, []string{"a"},
		},
		{
			"machines with DHCP stay when static addresses are added",
			[]v1alpha1.KubevirtMachine{newMachine("a", 1, setPending, useDHCP)}, blue, 1, 0, nil,
		},
	} {
		t.Run(tc.why, func(t *testing.T) {
			t.Parallel()

			got := planChange(tc.machines, tc.spec, tc.replicas)
			if got.create != tc.create {
				t.Errorf("creates %d machines, want %d", got.create, tc.create)
			}

			var removed []string
			for i := range got.delete {
				removed = append(removed, got.delete[i].Name)
			}

			if diff := cmp.Diff(tc.remove, removed); diff != "" {
				t.Errorf("deletes (-want +got):\n%s", diff)
			}
		})
	}
}
