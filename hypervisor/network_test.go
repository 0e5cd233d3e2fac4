// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypervisor_test

import (
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

func TestMayBeSameNetwork(t *testing.T) {
	t.Parallel()

	network := hypervisor.NewAddressNetwork

	for name, tc := range map[string]struct {
		a, b string
		want bool
	}{
		"one bridge":                          {network("lab", "vmbr0", 0), network("lab", "vmbr0", 0), true},
		"two bridges":                         {network("lab", "vmbr0", 0), network("lab", "vmbr1", 0), false},
		"a bridge without and with a VLAN":    {network("lab", "vmbr0", 0), network("lab", "vmbr0", 20), false},
		"two VLANs of one bridge":             {network("lab", "vmbr0", 20), network("lab", "vmbr0", 30), false},
		"an unknown bridge":                   {network("lab", "", 0), network("lab", "vmbr0", 0), true},
		"an unknown bridge, and a VLAN":       {network("lab", "", 0), network("lab", "vmbr0", 20), true},
		"a VLAN of an unknown bridge":         {network("lab", "", 20), network("lab", "vmbr0", 0), true},
		"the same VLAN of an unknown bridge":  {network("lab", "", 20), network("lab", "vmbr0", 20), true},
		"another VLAN of an unknown bridge":   {network("lab", "", 20), network("lab", "vmbr0", 30), false},
		"two VLANs of unknown bridges":        {network("lab", "", 20), network("lab", "", 30), false},
		"unknown bridges of two clusters":     {network("lab", "", 0), network("office", "", 0), false},
		"an unknown bridge and another's":     {network("lab", "", 0), network("office", "vmbr0", 0), false},
		"a virtual network and a bridge":      {network("lab", "network:default", 0), network("lab", "br0", 0), true},
		"two virtual networks":                {network("lab", "network:default", 0), network("lab", "network:other", 0), true},
		"user mode and a bridge":              {network("lab", "mode:user", 0), network("lab", "br0", 0), false},
		"user mode and an unknown bridge":     {network("lab", "mode:user", 0), network("lab", "", 0), true},
		"networks of KubeVirt":                {"ci/vlan20", "ci/vlan30", false},
		"one network of KubeVirt":             {"ci/vlan20", "ci/vlan20", true},
		"networks of another KubeVirt":        {"remote:ci/vlan20", "remote:ci/vlan30", false},
		"a network of here, and one of there": {"ci/vlan20", "remote:ci/vlan20", false},
		"no network":                          {"", network("lab", "", 0), false},
	} {
		if got, back := hypervisor.MayBeSameNetwork(tc.a, tc.b), hypervisor.MayBeSameNetwork(tc.b, tc.a); got != tc.want || back != tc.want {
			t.Errorf("%s: %q and %q: %t and %t, want %t", name, tc.a, tc.b, got, back, tc.want)
		}
	}
}

// An address in a record is in use on each network that may be the one of the record.
func TestCheckAddressesOfRelatedNetworks(t *testing.T) {
	t.Parallel()

	record := hypervisor.Identity{OperatorUID: "op", Cluster: "lab"}.NewRecord(hypervisor.Owner{UID: "first"},
		hypervisor.NetworkOptions{Addresses: []string{"10.0.0.10/24"}, AddressNetwork: hypervisor.NewAddressNetwork("lab", "", 0)}, time.Now())

	for network, isUsed := range map[string]bool{"lab:": true, "lab:vmbr0": true, "lab:vmbr0/vlan20": true, "office:vmbr0": false} {
		err := record.CheckAddresses(hypervisor.MachineSpec{
			Owner: hypervisor.Owner{UID: "second"}, Network: hypervisor.NetworkOptions{Addresses: []string{"10.0.0.10/24"}, AddressNetwork: network},
		}, "machine 1")
		if hypervisor.Is(err, hypervisor.NoCapacity) != isUsed {
			t.Errorf("on network %s: %v, want the address in use: %t", network, err, isUsed)
		}
	}
}
