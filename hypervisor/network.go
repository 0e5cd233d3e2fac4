// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"strconv"
	"strings"
)

const (
	// VirtualNetworkPrefix precedes the name of a virtual network of libvirt hosts in an address network. Such a network
	// can be built on any bridge.
	VirtualNetworkPrefix = "network:"
	// UserModeNetwork is the address network of machines that have a network of their own each (QEMU's user mode).
	UserModeNetwork = "mode:user"
)

// NewAddressNetwork returns the NetworkOptions.AddressNetwork of machines of a HypervisorCluster:
// CLUSTER:BRIDGE, with the suffix /vlanN if the machines have a VLAN. attachment is the bridge, or
// VirtualNetworkPrefix and a virtual network, or UserModeNetwork. It is empty if nobody but the hypervisor knows to what
// it attaches the machines. vlan is 0 for machines without a VLAN tag of their own.
func NewAddressNetwork(cluster, attachment string, vlan int) string {
	out := cluster + ":" + attachment
	if vlan != 0 {
		out += vlanPart + strconv.Itoa(vlan)
	}

	return out
}

// vlanPart precedes the VLAN in an address network. No bridge has a slash in its name.
const vlanPart = "/vlan"

// MayBeSameNetwork reports whether two values of NetworkOptions.AddressNetwork can be one network, so that an address on
// one of them must not be used on the other. This is so if they are equal. It is also so if they are of one cluster, and
// one of them does not say on which bridge the machines are, except if both name a VLAN and the VLANs differ.
func MayBeSameNetwork(a, b string) bool {
	if a == b {
		return true
	}

	first, isFirstParsed := parseAddressNetwork(a)
	second, isSecondParsed := parseAddressNetwork(b)

	if !isFirstParsed || !isSecondParsed || first.cluster != second.cluster || !first.isOpen() && !second.isOpen() {
		return false
	}

	return first.vlan == "" || second.vlan == "" || first.vlan == second.vlan
}

// addressNetwork is an address network that NewAddressNetwork has returned.
type addressNetwork struct{ cluster, attachment, vlan string }

// parseAddressNetwork returns false for the network of another hypervisor, which has a form of its own.
func parseAddressNetwork(text string) (addressNetwork, bool) {
	cluster, rest, found := strings.Cut(text, ":")
	attachment, vlan, _ := strings.Cut(rest, vlanPart)

	return addressNetwork{cluster: cluster, attachment: attachment, vlan: vlan}, found
}

// isOpen reports whether the network may be that of any bridge of the cluster.
func (n addressNetwork) isOpen() bool {
	return n.attachment == "" || strings.HasPrefix(n.attachment, VirtualNetworkPrefix)
}
