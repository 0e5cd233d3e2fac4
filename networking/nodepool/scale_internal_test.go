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

// static returns a spec with static addresses on a network.
func static(network string, subnets ...v1alpha1.AddressRange) v1alpha1.KubevirtMachineSpec {
	return v1alpha1.KubevirtMachineSpec{BootstrapNetworkConfig: &v1alpha1.VirtualMachineBootstrapNetworkConfig{
		Interface: "eno101", NetworkName: network, Subnets: subnets,
	}}
}

// aged returns a machine with an age in minutes.
func aged(name string, age int, how ...func(*v1alpha1.KubevirtMachine)) v1alpha1.KubevirtMachine {
	m := v1alpha1.KubevirtMachine{Spec: static("blue", "10.0.0.0/24")}
	m.Name = name
	m.CreationTimestamp = metav1.NewTime(time.Date(2026, 1, 1, 12, -age, 0, 0, time.UTC))
	m.Status.Phase = v1alpha1.KubevirtMachineProvisioning

	for _, change := range how {
		change(&m)
	}

	return m
}

func isReady(m *v1alpha1.KubevirtMachine) {
	m.Status.Ready, m.Status.Phase = true, v1alpha1.KubevirtMachineRunning
}

func isPending(m *v1alpha1.KubevirtMachine) { m.Status.Phase = v1alpha1.KubevirtMachinePending }

func isDeleted(m *v1alpha1.KubevirtMachine) { m.DeletionTimestamp = &metav1.Time{} }

func hasAddress(m *v1alpha1.KubevirtMachine) {
	m.Status.AllocatedBootstrapAddresses = map[string][]string{"eno101": {"10.0.0.1/24"}}
}

func asksDHCP(m *v1alpha1.KubevirtMachine) { m.Spec = v1alpha1.KubevirtMachineSpec{} }

func TestPlanChange(t *testing.T) {
	t.Parallel()

	blue := static("blue", "10.0.0.0/24")

	for _, tc := range []struct {
		why      string
		machines []v1alpha1.KubevirtMachine
		spec     v1alpha1.KubevirtMachineSpec
		replicas int
		create   int
		remove   []string
	}{
		{"nothing there", nil, blue, 3, 3, nil},
		{"as many as there should be", []v1alpha1.KubevirtMachine{aged("a", 1), aged("b", 2)}, blue, 2, 0, nil},
		{"deleted ones don't count", []v1alpha1.KubevirtMachine{aged("a", 1, isDeleted), aged("b", 2)}, blue, 2, 1, nil},
		{
			"those without anything go first, then those that are not ready, then the newest",
			[]v1alpha1.KubevirtMachine{
				aged("old", 9, isReady), aged("older", 10, isReady), aged("new", 1, isReady), aged("coming", 2), aged("waiting", 3, isPending),
			},
			blue, 2, 0, []string{"waiting", "coming", "new"},
		},
		{"all go", []v1alpha1.KubevirtMachine{aged("a", 1), aged("b", 2)}, blue, 0, 0, []string{"a", "b"}},
		{
			"growth is no reason to replace those that wait",
			[]v1alpha1.KubevirtMachine{aged("a", 1, isPending)}, static("blue", "10.0.0.0/24", "10.0.1.0/24"), 1, 0, nil,
		},
		{
			"those that wait on a network that is not the pool's any more are replaced",
			[]v1alpha1.KubevirtMachine{aged("a", 1, isPending), aged("b", 1, isPending, hasAddress), aged("c", 1, isReady)},
			static("red", "10.0.0.0/24"), 3, 1, []string{"a"},
		},
		{
			"without static addresses those that wait for one ask DHCP instead",
			[]v1alpha1.KubevirtMachine{aged("a", 1, isPending), aged("b", 1, isReady, hasAddress)},
			v1alpha1.KubevirtMachineSpec{}, 2, 1, []string{"a"},
		},
		{
			"those on DHCP stay when static addresses come",
			[]v1alpha1.KubevirtMachine{aged("a", 1, isPending, asksDHCP)}, blue, 1, 0, nil,
		},
	} {
		t.Run(tc.why, func(t *testing.T) {
			t.Parallel()

			got := planChange(tc.machines, tc.spec, tc.replicas)
			if got.create != tc.create {
				t.Errorf("makes %d machines, want %d", got.create, tc.create)
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
