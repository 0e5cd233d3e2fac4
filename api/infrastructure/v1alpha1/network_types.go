// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// AddressRange is a CIDR (192.168.10.0/24), a first and a last address
// (192.168.9.1-192.168.9.5), or a single address (192.168.1.100/32, 2001:db8::1/128).
//
// +kubebuilder:validation:MaxLength=90
// +kubebuilder:validation:XValidation:rule="self.contains('/') ? isCIDR(self) : self.split('-').size() == 2 && self.split('-').all(a, isIP(a.trim()))",message="write a CIDR (10.0.0.0/24), a range of two addresses (10.0.0.10-10.0.0.20), or a single address with its length (10.0.0.5/32, fd00::5/128)"
// +kubebuilder:validation:XValidation:rule="self.contains('/') || self.split('-').size() != 2 || !self.split('-').all(a, isIP(a.trim())) || ip(self.split('-')[0].trim()).family() == ip(self.split('-')[1].trim()).family()",message="both ends of a range must be of one family: write one range for IPv4 and one for IPv6"
// +kubebuilder:validation:XValidation:rule="!self.contains('/') || !isCIDR(self) || cidr(self) == cidr(self).masked()",message="a CIDR must not have bits beyond its prefix: write 10.0.0.0/24 for the network, or 10.0.0.5/32 for one address"
type AddressRange string

// IPAddress is one IPv4 or IPv6 address.
//
// +kubebuilder:validation:MaxLength=45
// +kubebuilder:validation:XValidation:rule="isIP(self)",message="it must be an IP address such as 10.0.0.1 or fd00::1"
type IPAddress string

// LocalObjectReference names an object in the same namespace.
type LocalObjectReference struct {
	// name of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="name must be the name of an object: lower-case letters, digits, '-' and '.'"
	Name string `json:"name"`
}

// KubevirtNetwork attaches machines to a network.
type KubevirtNetwork struct {
	// name of the NetworkAttachmentDefinition as NAME or NAMESPACE/NAME; without a
	// namespace it is the pool's own.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=127
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="name must be a NetworkAttachmentDefinition's, written NAME or NAMESPACE/NAME"
	Name string `json:"name"`
}

// KubevirtBootstrapNetworkConfig gives machines static addresses.
// +kubebuilder:validation:XValidation:rule="!has(self.prefixLengthV4) || self.addresses.exists(a, a.contains('.'))",message="prefixLengthV4 needs IPv4 addresses"
// +kubebuilder:validation:XValidation:rule="!has(self.prefixLengthV6) || self.addresses.exists(a, a.contains(':'))",message="prefixLengthV6 needs IPv6 addresses"
type KubevirtBootstrapNetworkConfig struct {
	// network that the addresses are for, by the name that it has in the machine's
	// VirtualMachine: iface1_NAMESPACE-NAME for the first of additionalNetworks, iface2_...
	// for the second. With one additional network it may be any name, which that network
	// then gets. Default: the first.
	// +optional
	// +kubebuilder:validation:MaxLength=200
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_-]+$')",message="network must be the name of a network in the VirtualMachine: letters, digits, '-' and '_'"
	Network string `json:"network,omitempty"`

	// addresses to give, in this order, the lowest free one of an entry first: CIDRs
	// (192.168.10.0/24), ranges (192.168.9.1-192.168.9.5) and single addresses
	// (192.168.1.100/32, 2001:db8::1/128). A machine gets one address of each family that
	// is there.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Addresses []AddressRange `json:"addresses"`

	// excludedAddresses are never given; they are written as addresses are. Gateways, and
	// network and broadcast addresses, are never given either.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	ExcludedAddresses []AddressRange `json:"excludedAddresses,omitempty"`

	// nameservers that machines ask.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4
	Nameservers []IPAddress `json:"nameservers,omitempty"`

	// gateway of each family: the way out of the network. At most two of each.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:XValidation:rule="self.filter(g, g.contains('.')).size() <= 2 && self.filter(g, g.contains(':')).size() <= 2",message="gateway takes at most two addresses of each family"
	Gateway []IPAddress `json:"gateway,omitempty"`

	// prefixLengthV4 of the network's IPv4 subnet. Default: that of the entry of addresses
	// if it is a CIDR, else a guess: the smallest that covers the addresses and their gateway.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	PrefixLengthV4 int32 `json:"prefixLengthV4,omitempty"`

	// prefixLengthV6 of the network's IPv6 subnet. Default: as for prefixLengthV4; the guess is
	// 64.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	PrefixLengthV6 int32 `json:"prefixLengthV6,omitempty"`

	// networkData is network configuration to give to machines, in place of what is made
	// of gateway and nameservers: OpenStack's network_data.json, as JSON or YAML. It must
	// have the interface eno101, where each machine's addresses are put in.
	// +optional
	// +kubebuilder:validation:MaxLength=16384
	NetworkData string `json:"networkData,omitempty"`
}

// VirtualMachineBootstrapNetworkConfig is what a machine is told of its network.
type VirtualMachineBootstrapNetworkConfig struct {
	// interface in the machine that gets the addresses.
	// +optional
	// +kubebuilder:default=eno101
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_.-]+$')",message="interface must be the name of a network interface such as eno101"
	Interface string `json:"interface,omitempty"`

	// networkName of the network in virtualMachineTemplate.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=200
	NetworkName string `json:"networkName"`

	// subnets that addresses are given from, as KubevirtNodePool's addresses. For a machine
	// of a node pool, what the pool says now counts.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Subnets []AddressRange `json:"subnets"`

	// excludedAddresses are never given.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	ExcludedAddresses []AddressRange `json:"excludedAddresses,omitempty"`

	// networkData is OpenStack's network_data.json, as JSON or YAML, without the
	// addresses: they are put in at the interface.
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	NetworkData *string `json:"networkData,omitempty"`
}
