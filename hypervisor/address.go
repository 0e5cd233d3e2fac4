// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"net/netip"
	"strings"
)

// GuestInterface is a network interface as a QEMU guest agent reports it.
type GuestInterface struct {
	Name      string         `json:"name"`
	MAC       string         `json:"hardware-address"`
	Addresses []GuestAddress `json:"ip-addresses"`
}

// GuestAddress is an address of a GuestInterface.
type GuestAddress struct {
	IP string `json:"ip-address"`
}

// SelectAddress returns an address of the interface that has the machine's MAC address, or "". If the MAC address is
// unknown, any interface except the loopback counts. IPv4 comes before IPv6, and link-local addresses are ignored.
func SelectAddress(interfaces []GuestInterface, mac string) string {
	best := ""

	for _, nic := range interfaces {
		if nic.Name == "lo" || mac != "" && nic.MAC != "" && !strings.EqualFold(nic.MAC, mac) {
			continue
		}

		for _, a := range nic.Addresses {
			addr, err := netip.ParseAddr(a.IP)
			addr = addr.Unmap()

			// An address with a zone is ignored, because the guest can write any text as the zone.
			if err != nil || addr.Zone() != "" || addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsUnspecified() {
				continue
			}

			if addr.Is4() {
				return addr.String()
			}

			if best == "" {
				best = addr.String()
			}
		}
	}

	return best
}
