// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypervisor_test

import (
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// An address is in use however it is spelled, and whatever its prefix length is.
func TestCheckAddresses(t *testing.T) {
	t.Parallel()

	record := hypervisor.Identity{OperatorUID: "operator", Cluster: "lab"}.NewRecord(hypervisor.Owner{UID: "first"},
		hypervisor.NetworkOptions{Addresses: []string{"10.0.0.10/24", "2001:DB8:0::A/64"}, AddressNetwork: "lab"}, time.Now())

	for address, isInUse := range map[string]bool{
		"10.0.0.10/24": true, "10.0.0.10/16": true, "10.0.0.1/24": false, "10.0.0.100/24": false,
		"2001:db8::a/64": true, "2001:0db8::000a/64": true, "2001:db8::ab/64": false,
	} {
		spec := hypervisor.MachineSpec{
			Owner: hypervisor.Owner{UID: "second"}, Network: hypervisor.NetworkOptions{Addresses: []string{address}, AddressNetwork: "lab"},
		}

		if err := record.CheckAddresses(spec, "machine 7"); hypervisor.Is(err, hypervisor.NoCapacity) != isInUse {
			t.Errorf("%s: want in use %t, got %v", address, isInUse, err)
		}
	}
}
