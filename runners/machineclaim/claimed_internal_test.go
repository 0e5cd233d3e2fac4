// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// newClaimed returns a claim with a machine on a node of cluster lab, which has not started.
func newClaimed(namespace, name, id string, change func(*v1alpha1.MachineClaim)) *v1alpha1.MachineClaim {
	claim := &v1alpha1.MachineClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name)},
		Spec:       v1alpha1.MachineClaimSpec{TemplateRef: v1alpha1.LocalObjectReference{Name: "linux"}},
		Status: v1alpha1.MachineClaimStatus{VMRef: &v1alpha1.VMReference{
			HypervisorCluster: "lab", VMID: id, Node: "host-1",
			Resources: &v1alpha1.PlacedResources{CPU: 4, Memory: resource.MustParse("8Gi")},
		}},
	}
	if change != nil {
		change(claim)
	}

	return claim
}

// The operator knows after a restart what the machines will use that it had placed and that were not started.
func TestListClaimed(t *testing.T) {
	t.Parallel()

	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	now := metav1.NowMicro()
	linux := &v1alpha1.HypervisorMachineTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "linux"},
		Spec: v1alpha1.HypervisorMachineTemplateSpec{Resources: v1alpha1.MachineResources{
			CPU: 2, Memory: resource.MustParse("4Gi"), Devices: []v1alpha1.MachineDevice{{Name: "gpu"}},
		}},
	}
	reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		linux,
		newClaimed("ci", "placed", "100", nil),
		newClaimed("ci", "of-an-older-operator", "101", func(c *v1alpha1.MachineClaim) { c.Status.VMRef.Resources = nil }),
		newClaimed("ci", "started", "102", func(c *v1alpha1.MachineClaim) { c.Status.Times = &v1alpha1.MachineTimes{Started: &now} }),
		newClaimed("ci", "ended", "103", func(c *v1alpha1.MachineClaim) { c.Status.Times = &v1alpha1.MachineTimes{Ended: &now} }),
		newClaimed("ci", "standby", "104", func(c *v1alpha1.MachineClaim) { c.Spec.Standby = true }),
		newClaimed("ci", "elsewhere", "105", func(c *v1alpha1.MachineClaim) { c.Status.VMRef.HypervisorCluster = "office" }),
		newClaimed("ci", "without-a-node", "106", func(c *v1alpha1.MachineClaim) { c.Status.VMRef.Node = "" }),
		newClaimed("ci", "without-a-template", "107", func(c *v1alpha1.MachineClaim) { c.Spec.TemplateRef.Name = "gone" }),
		newClaimed("ci", "waiting", "", func(c *v1alpha1.MachineClaim) { c.Status.VMRef = nil }),
		newClaimed("ci", "no-number", "uuid", nil),
		newClaimed("ci", "deleted", "108", func(c *v1alpha1.MachineClaim) {
			c.DeletionTimestamp, c.Finalizers = &metav1.Time{Time: now.Time}, []string{v1alpha1.FinalizerVMCleanup}
		}),
	).Build()

	got, err := ListClaimed(t.Context(), reader, nil, "lab")
	if err != nil {
		t.Fatal(err)
	}

	slices.SortFunc(got, func(a, b hypervisor.ClaimedMachine) int { return a.ID - b.ID })

	devices := []hypervisor.Device{{Name: "gpu", Count: 1}}
	want := []hypervisor.ClaimedMachine{
		{ID: 100, Node: "host-1", OwnerUID: "uid-placed", CPU: 4, Memory: 8 << 30, Devices: devices},
		{ID: 101, Node: "host-1", OwnerUID: "uid-of-an-older-operator", CPU: 2, Memory: 4 << 30, Devices: devices},
		{ID: 102}, {ID: 103}, {ID: 104}, {ID: 105}, {ID: 106}, {ID: 107}, {ID: 108},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("claimed machines (-want +got):\n%s", diff)
	}
}

// An operator holds only the machines of its own claims. It does not see the deletion of the claims of others, so it could
// not use their IDs until its next start.
func TestClaimedMachinesAreThoseOfTheNamespaces(t *testing.T) {
	t.Parallel()

	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		newClaimed("team-a", "a", "100", nil), newClaimed("team-b", "b", "101", nil), newClaimed("team-c", "c", "uuid", nil),
	).Build()

	for _, tc := range []struct {
		namespaces []string
		want       []int
	}{{nil, []int{100, 101}}, {[]string{"team-a", "team-c"}, []int{100}}} {
		got, err := ListClaimed(t.Context(), reader, tc.namespaces, "lab")

		var ids []int
		for _, m := range got {
			ids = append(ids, m.ID)
		}

		slices.Sort(ids)

		if err != nil || !slices.Equal(ids, tc.want) {
			t.Errorf("IDs %v of the namespaces %v, want %v (%v)", ids, tc.namespaces, tc.want, err)
		}
	}
}
