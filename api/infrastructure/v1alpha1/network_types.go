// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// AddressRange is a CIDR (192.168.10.0/24), a first and a last address
// (192.168.9.1-192.168.9.5), or a single address (192.168.1.100/32, 2001:db8::1/128).
//
// +kubebuilder:validation:MaxLength=90
// +kubebuilder:validation:XValidation:rule="self.contains('/') ? isCIDR(self) : self.split('-').size() == 2 && self.split('-').all(a, isIP(a.trim()))",message="write a CIDR (10.0.0.0/24), a range of two addresses (10.0.0.10-10.0.0.20), or a single address with its length (10.0.0.5/32, fd00::5/128)"
// +kubebuilder:validation:XValidation:rule="self.contains('/') || self.split('-').size() != 2 || !self.split('-').all(a, isIP(a.trim())) || ip(self.split('-')[0].trim()).family() == ip(self.split('-')[1].trim()).family()",message="both ends of a range must be of one address family: write one range for IPv4 and one for IPv6"
// +kubebuilder:validation:XValidation:rule="!self.contains('/') || !isCIDR(self) || cidr(self) == cidr(self).masked()",message="a CIDR must not have bits beyond its prefix: write 10.0.0.0/24 for the network, or 10.0.0.5/32 for one address"
type AddressRange string

// IPAddress is an IPv4 or IPv6 address.
//
// +kubebuilder:validation:MaxLength=45
// +kubebuilder:validation:XValidation:rule="isIP(self)",message="it must be an IP address such as 10.0.0.1 or fd00::1"
type IPAddress string

// LocalObjectReference names an object in the same namespace.
type LocalObjectReference struct {
	// name is the name of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="name must be the name of an object: lower-case letters, digits, '-' and '.'"
	Name string `json:"name"`
}

// KubevirtNetwork is a network that machines are attached to.
type KubevirtNetwork struct {
	// name is the NetworkAttachmentDefinition as NAME or NAMESPACE/NAME. Without a namespace it is in the
	// pool's namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=127
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')",message="name must be the name of a NetworkAttachmentDefinition, written NAME or NAMESPACE/NAME"
	Name string `json:"name"`
}

// KubevirtBootstrapNetworkConfig defines the static addresses of machines.
// +kubebuilder:validation:XValidation:rule="!has(self.prefixLengthV4) || self.addresses.exists(a, a.contains('.'))",message="prefixLengthV4 needs IPv4 addresses"
// +kubebuilder:validation:XValidation:rule="!has(self.prefixLengthV6) || self.addresses.exists(a, a.contains(':'))",message="prefixLengthV6 needs IPv6 addresses"
type KubevirtBootstrapNetworkConfig struct {
	// network is the network of the addresses, by its name in the VirtualMachine: iface1_NAMESPACE-NAME
	// for the first of additionalNetworks, and iface2_... for the second. If there is only one additional
	// network, you may use any name, which the network then gets. Default: the first additional network.
	// +optional
	// +kubebuilder:validation:MaxLength=200
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_-]+$')",message="network must be the name of a network in the VirtualMachine: letters, digits, '-' and '_'"
	Network string `json:"network,omitempty"`

	// addresses are the addresses to allocate: CIDRs (192.168.10.0/24), ranges (192.168.9.1-192.168.9.5)
	// and single addresses (192.168.1.100/32, 2001:db8::1/128). They are allocated in this order, and in
	// each entry the lowest free address first. Each machine gets one address of each address family in
	// the list.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Addresses []AddressRange `json:"addresses"`

	// excludedAddresses are never allocated. They have the same format as addresses. Gateways, network
	// addresses and broadcast addresses are never allocated either.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	ExcludedAddresses []AddressRange `json:"excludedAddresses,omitempty"`

	// nameservers are the DNS servers of machines.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4
	Nameservers []IPAddress `json:"nameservers,omitempty"`

	// gateway are the default gateways of the network, at most two of each address family.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:XValidation:rule="self.filter(g, g.contains('.')).size() <= 2 && self.filter(g, g.contains(':')).size() <= 2",message="gateway must have at most two addresses of each address family"
	Gateway []IPAddress `json:"gateway,omitempty"`

	// prefixLengthV4 is the prefix length of the network's IPv4 subnet. Default: the prefix length of the
	// entry in addresses if the entry is a CIDR, and otherwise a guess: the smallest subnet that contains
	// the addresses and their gateway.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	PrefixLengthV4 int32 `json:"prefixLengthV4,omitempty"`

	// prefixLengthV6 is the prefix length of the network's IPv6 subnet. The default is as for
	// prefixLengthV4, but the guess is 64.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	PrefixLengthV6 int32 `json:"prefixLengthV6,omitempty"`

	// networkData is the network configuration of machines, instead of the configuration that is
	// generated from gateway and nameservers. It is OpenStack's network_data.json in JSON or YAML. It
	// must have the interface eno101, to which each machine's addresses are added.
	// +optional
	// +kubebuilder:validation:MaxLength=16384
	NetworkData string `json:"networkData,omitempty"`
}

// VirtualMachineBootstrapNetworkConfig defines the static addresses of a machine.
type VirtualMachineBootstrapNetworkConfig struct {
	// interface is the name of the network interface in the machine that gets the addresses.
	// +optional
	// +kubebuilder:default=eno101
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_.-]+$')",message="interface must be the name of a network interface such as eno101"
	Interface string `json:"interface,omitempty"`

	// networkName is the name of the network in virtualMachineTemplate.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=200
	NetworkName string `json:"networkName"`

	// subnets are the addresses to allocate, in the format of the addresses of a KubevirtNodePool. For a
	// machine of a node pool, the current addresses of the pool are used instead.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Subnets []AddressRange `json:"subnets"`

	// excludedAddresses are never allocated. They have the same format as subnets.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	ExcludedAddresses []AddressRange `json:"excludedAddresses,omitempty"`

	// networkData is OpenStack's network_data.json, in JSON or YAML, without the addresses. The operator
	// adds the addresses to the interface.
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	NetworkData *string `json:"networkData,omitempty"`
}
