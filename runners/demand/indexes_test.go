// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/workload"
)

// A changed template wakes the claims that wait for it, and not those that have a machine.
func TestClaimsWithMachinesWaitForNoTemplate(t *testing.T) {
	t.Parallel()

	claim := &v1alpha1.MachineClaim{Spec: v1alpha1.MachineClaimSpec{TemplateRef: v1alpha1.LocalObjectReference{Name: "linux"}}}

	if got := demand.GetIndexValues(claim, demand.IndexWaitingTemplate); !slices.Equal(got, []string{"linux"}) {
		t.Errorf("a claim without a machine has the index values %v", got)
	}

	claim.Status.VMRef = &v1alpha1.VMReference{VMID: "100"}

	if got := demand.GetIndexValues(claim, demand.IndexWaitingTemplate); len(got) > 0 {
		t.Errorf("a claim with a machine has the index values %v", got)
	}
}

// The claims of a runner are found by the name in the runner's name, and otherwise by an index, which is small because most
// claims are not in it.
func TestClaimsOfRunner(t *testing.T) {
	t.Parallel()

	long := strings.Repeat("l", 62) + "-1"
	claims := []*v1alpha1.MachineClaim{
		{ObjectMeta: metav1.ObjectMeta{Name: "linux-1", UID: "0a1b2c3d-1"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "linux-2", UID: "0a1b2c3d-2"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "renamed", UID: "0a1b2c3d-3"}, Status: v1alpha1.MachineClaimStatus{
			BootstrapInfo: &v1alpha1.BootstrapInfo{RunnerName: "another"},
		}},
		{ObjectMeta: metav1.ObjectMeta{Name: long, UID: "0a1b2c3d-4"}},
	}
	builder := fake.NewClientBuilder().WithScheme(env.Scheme)

	for _, claim := range claims {
		claim.Namespace = "team"
		builder.WithObjects(claim)
	}

	reader := kube.NewIndexedClient(t, builder.Build(), demand.AddIndexes)

	for runner, want := range map[string][]string{
		"linux-1-0a1b2c3d": {"linux-1"}, "linux-2-0a1b2c3d": {"linux-2"}, "linux-1-ffffffff": nil, "linux-1": nil, "gone-0a1b2c3d": nil, "": nil,
		"another": {"renamed"}, "renamed-0a1b2c3d": {"renamed"}, workload.RunnerName(long, "0a1b2c3d-4"): {long},
	} {
		found, err := demand.ListClaimsOfRunner(t.Context(), reader, "team", runner)
		if err != nil {
			t.Fatal(err)
		}

		var names []string
		for i := range found {
			names = append(names, found[i].Name)
		}

		if !slices.Equal(names, want) {
			t.Errorf("runner %q has the claims %q, want %q", runner, names, want)
		}
	}

	for i, want := range []int{0, 0, 1, 1} {
		if got := demand.GetIndexValues(claims[i], "foreignRunner"); len(got) != want {
			t.Errorf("claim %s is in the index as %q, want %d names", claims[i].Name, got, want)
		}
	}
}
