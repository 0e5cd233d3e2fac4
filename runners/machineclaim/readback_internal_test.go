// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"testing"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// A claim whose addresses are those of its machine in another spelling does not wait for others. The networking area
// writes them in one spelling, so it would wait without an end.
func TestReadBackAddressesComparesAddresses(t *testing.T) {
	t.Parallel()

	s := &scope{
		claim: &v1alpha1.MachineClaim{Status: v1alpha1.MachineClaimStatus{
			NetworkInfo: &v1alpha1.NetworkInfo{Addresses: []string{"10.0.0.10/24", "2001:db8::a/64"}},
		}},
		template: &v1alpha1.HypervisorMachineTemplate{Spec: v1alpha1.HypervisorMachineTemplateSpec{Network: &v1alpha1.MachineNetwork{
			Mode: v1alpha1.NetworkModeStatic, Static: &v1alpha1.StaticNetwork{Pool: &v1alpha1.AddressPool{}},
		}}},
	}

	found := hypervisor.Reservation{Exists: true, Addresses: []string{"10.0.0.10/24", "2001:DB8:0::A/64"}}
	if result := s.readBackAddresses(t.Context(), found, hypervisor.Machine{}); !result.IsDone() {
		t.Errorf("got %+v", result)
	}
}
