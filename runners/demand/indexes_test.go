// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"slices"
	"testing"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
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
