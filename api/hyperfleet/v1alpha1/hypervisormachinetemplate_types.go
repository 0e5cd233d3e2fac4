// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// HypervisorMachineTemplateSpec says what a machine is made from.
// +kubebuilder:validation:XValidation:rule="!has(self.bootstrap) || !has(self.bootstrap.method) || self.bootstrap.method != 'external-secrets' || has(self.attestation)",message="bootstrap.method external-secrets needs attestation: machines log in to the secrets manager with their identity"
// +kubebuilder:validation:XValidation:rule="!has(self.network) || self.network.mode != 'cloud-init' || (has(self.cloudInit) && has(self.cloudInit.networkData))",message="network.mode cloud-init needs cloudInit.networkData"
// +kubebuilder:validation:XValidation:rule="!has(self.template.kubevirt) || !has(self.network) || !(has(self.network.bridge) || has(self.network.vlan))",message="network.bridge and network.vlan do not belong to KubeVirt: name a NetworkAttachmentDefinition in template.kubevirt.network"
// +kubebuilder:validation:XValidation:rule="!has(self.template.kubevirt) || !has(self.template.kubevirt.containerDisk) || !has(self.resources.disk)",message="resources.disk does not belong to a containerDisk, which has the size of its image: leave it out, or use a dataSource"
// +kubebuilder:validation:XValidation:rule="!has(self.template.kubevirt) || !has(self.bootstrap) || !has(self.bootstrap.delivery) || self.bootstrap.delivery != 'iso'",message="bootstrap.delivery iso does not fit KubeVirt, where a cloud-init ISO holds 1 MiB: put the bootstrap service into the image, or have it downloaded"
type HypervisorMachineTemplateSpec struct {
	// hypervisorClusterRef names the HypervisorCluster that machines are made on.
	HypervisorClusterRef LocalObjectReference `json:"hypervisorClusterRef"`

	// template is the hypervisor's own template that machines are cloned from.
	Template TemplateSource `json:"template"`

	// resources of a machine.
	Resources MachineResources `json:"resources"`

	// attestation says how a machine proves who it is. Default: not at all.
	// +optional
	Attestation *Attestation `json:"attestation,omitempty"`

	// bootstrap says how a machine gets its runner credential, and the runner.
	// +optional
	// +kubebuilder:default={}
	Bootstrap Bootstrap `json:"bootstrap,omitempty"`

	// cloudInit holds the user's own cloud-init data.
	// +optional
	CloudInit *CloudInit `json:"cloudInit,omitempty"`

	// network of a machine.
	// +optional
	Network *MachineNetwork `json:"network,omitempty"`

	// cache names caches on your network for machines to use.
	// +optional
	Cache *MachineCache `json:"cache,omitempty"`

	// environment of the runner, and with it of its jobs, such as HTTPS_PROXY or GOPROXY. Not
	// for secrets: those belong into the CI platform.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.matches('^[A-Za-z_][A-Za-z0-9_]{0,127}$'))",message="environment must have names of letters, digits and '_', such as HTTPS_PROXY"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.matches('^(ACTIONS_RUNNER_INPUT|SPIFFE|HYPERFLEET)_'))",message="environment must not have names that begin with ACTIONS_RUNNER_INPUT_, SPIFFE_ or HYPERFLEET_: they are the bootstrap service's"
	Environment map[string]EnvironmentValue `json:"environment,omitempty"`

	// metadata is put on the MachineClaims that are made from this template.
	// +optional
	Metadata *MachineMetadata `json:"metadata,omitempty"`
}

// TemplateSource is a template on one kind of hypervisor: that of the cluster that
// hypervisorClusterRef names.
// +kubebuilder:validation:XValidation:rule="has(self.proxmox) != has(self.kubevirt)",message="choose one of template.proxmox and template.kubevirt, by the provider of the HypervisorCluster"
type TemplateSource struct {
	// proxmox is a template on Proxmox VE.
	// +optional
	Proxmox *ProxmoxTemplate `json:"proxmox,omitempty"`
	// kubevirt is what machines of KubeVirt are made from.
	// +optional
	KubeVirt *KubeVirtTemplate `json:"kubevirt,omitempty"`
}

// KubeVirtTemplate is what a machine's first disk is made from on KubeVirt, and what it
// is attached to.
// +kubebuilder:validation:XValidation:rule="[has(self.containerDisk), has(self.dataSource), has(self.persistentVolumeClaim)].filter(x, x).size() == 1",message="choose one of kubevirt.containerDisk, kubevirt.dataSource and kubevirt.persistentVolumeClaim"
// +kubebuilder:validation:XValidation:rule="!has(self.containerDisk) || !has(self.storageClassName)",message="kubevirt.storageClassName belongs to dataSource and persistentVolumeClaim: a containerDisk needs no storage"
type KubeVirtTemplate struct {
	// containerDisk is a disk in a container image. Nothing is cloned and nothing stays: it
	// is the fastest, and what a machine writes must fit on its node.
	// +optional
	ContainerDisk *ContainerDisk `json:"containerDisk,omitempty"`
	// dataSource is a DataSource of the Containerized Data Importer that is cloned.
	// +optional
	DataSource *KubeVirtSource `json:"dataSource,omitempty"`
	// persistentVolumeClaim is a disk that is cloned.
	// +optional
	PersistentVolumeClaim *KubeVirtSource `json:"persistentVolumeClaim,omitempty"`
	// storageClassName of the cloned disk. Default: the HypervisorCluster's.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || !format.dns1123Subdomain().validate(self).hasValue()",message="kubevirt.storageClassName must be the name of a storage class"
	StorageClassName string `json:"storageClassName,omitempty"`
	// network is the NetworkAttachmentDefinition, as name or namespace/name, that machines
	// are attached to. Default: the HypervisorCluster's.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^([a-z0-9]([a-z0-9-]*[a-z0-9])?/)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')",message="kubevirt.network must be the name of a NetworkAttachmentDefinition such as vlan20 or networks/vlan20"
	Network string `json:"network,omitempty"`
}

// ContainerDisk is a disk in a container image.
type ContainerDisk struct {
	// image, e.g. quay.io/containerdisks/debian:13. Name it by digest to have every machine
	// start from the same bytes.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^[^\s]+$')`,message="containerDisk.image must be the name of an image such as quay.io/containerdisks/debian:13"
	Image string `json:"image"`
	// imagePullSecret is the name of a Secret in the machines' namespace that the image is
	// pulled with.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ImagePullSecret string `json:"imagePullSecret,omitempty"`
}

// KubeVirtSource names an object that a disk is cloned from.
type KubeVirtSource struct {
	// namespace of the object. Default: the machines' own. From another the operator must be
	// allowed to clone (cdi.kubevirt.io, datavolumes/source).
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
	// name of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// ProxmoxTemplate is a template on Proxmox VE and how it is cloned.
// +kubebuilder:validation:XValidation:rule="self.cloudInitSource != 'builtin' || has(self.snippetsStorage)",message="cloudInitSource builtin needs snippetsStorage: the storage that holds the user data"
// +kubebuilder:validation:XValidation:rule="has(self.templateId) != has(self.templateName)",message="choose the template by exactly one of templateId and templateName"
// +kubebuilder:validation:XValidation:rule="!(has(self.linkedClone) && self.linkedClone && has(self.storage))",message="storage is for full clones, and a linked clone stays on its template's storage: set linkedClone to false or leave storage out"
type ProxmoxTemplate struct {
	// templateId is the template's VMID. It lives on one node; machines can be placed
	// on others only if its disks are on shared storage.
	// +optional
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=999999999
	TemplateID *int32 `json:"templateId,omitempty"`
	// templateName is the template's name. Every node may have a template of this
	// name, so that machines can be placed on each of them from local storage.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	TemplateName string `json:"templateName,omitempty"`
	// clone makes machines by cloning, the only way there is.
	// +optional
	// +kubebuilder:default=true
	// +kubebuilder:validation:XValidation:rule="self",message="clone must be true: machines are always clones of the template"
	Clone *bool `json:"clone,omitempty"`
	// linkedClone shares the template's disks instead of copying them. It needs a
	// storage that can: LVM-thin, ZFS, Ceph RBD, or files in qcow2 format.
	// +optional
	// +kubebuilder:default=true
	LinkedClone *bool `json:"linkedClone,omitempty"`
	// storage for the disks of full clones. Default: the cluster's defaultStorage.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]$')",message="storage must be the id of a storage: a letter first, then letters, digits, '.', '_' and '-'"
	Storage string `json:"storage,omitempty"`
	// cloudInitSource is the way cloud-init data reaches the machine: nocloud uploads
	// an ISO, builtin uses Proxmox's own cloud-init drive and a snippets storage.
	// +optional
	// +kubebuilder:default=nocloud
	// +kubebuilder:validation:Enum=nocloud;builtin
	CloudInitSource string `json:"cloudInitSource,omitempty"`
	// snippetsStorage is where builtin keeps user data; its content types must include
	// snippets. Proxmox has no call to upload snippets, so snippetsPath must be mounted
	// into the operator.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]$')",message="snippetsStorage must be the id of a storage: a letter first, then letters, digits, '.', '_' and '-'"
	SnippetsStorage string `json:"snippetsStorage,omitempty"`
}

// MachineResources are the resources of one machine.
type MachineResources struct {
	// cpu is the number of cores.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	CPU int32 `json:"cpu"`
	// memory, e.g. 8Gi. Rounded up to whole MiB.
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? int(self) >= 67108864 : (string(self).matches('^[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$') && quantity(string(self)).compareTo(quantity('64Mi')) >= 0)",message="memory must be at least 64Mi; write it with a unit such as 8Gi"
	Memory resource.Quantity `json:"memory"`
	// disk is the size of the first disk, e.g. 50Gi. Disks only grow: a smaller value
	// than the template's disk is refused. Default: the template's size.
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? int(self) >= 1048576 : (string(self).matches('^[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$') && quantity(string(self)).compareTo(quantity('1Mi')) >= 0)",message="disk must be at least 1Mi; write it with a unit such as 50Gi"
	Disk *resource.Quantity `json:"disk,omitempty"`
}

// Attestation methods.
const (
	AttestationJoinToken = "join-token"
	AttestationTPM       = "tpm"
)

// Attestation says how a machine proves who it is.
type Attestation struct {
	// method of attestation.
	// +kubebuilder:validation:Enum=join-token;tpm
	// +optional
	// +kubebuilder:default=join-token
	Method string `json:"method,omitempty"`
	// config of the method.
	// +optional
	Config *AttestationConfig `json:"config,omitempty"`
}

// AttestationConfig configures the attestation methods.
type AttestationConfig struct {
	// joinTokenTTL is how long a join token may wait for its use, e.g. 1h.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) > duration('0s')",message="joinTokenTTL must be a time above zero such as 90s, 15m or 1h30m"
	JoinTokenTTL *metav1.Duration `json:"joinTokenTTL,omitempty"`
	// tpmDevice is the TPM's device file in the machine, e.g. /dev/tpm0.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self == '' || self.startsWith('/dev/')",message="tpmDevice must be a device file such as /dev/tpm0"
	TPMDevice string `json:"tpmDevice,omitempty"`
}

// CloudInit holds the user's own cloud-init data. Each text is a Go template over the
// variables listed in docs/reference/cloud-init.md, with the functions toJson and
// base64.
type CloudInit struct {
	// userData: #cloud-config, or any other format cloud-init knows.
	// +optional
	// +kubebuilder:validation:MaxLength=262144
	UserData string `json:"userData,omitempty"`
	// metaData in YAML. instance-id and local-hostname are set by the operator.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	MetaData string `json:"metaData,omitempty"`
	// networkData is a network-config, version 1 or 2, or OpenStack's network_data.json, as
	// YAML or JSON. It is used with every network mode and replaces what the mode would
	// give. The machine's addresses of network.static.pool are put in at
	// network.interface, unless it has them, as variables, already.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	NetworkData string `json:"networkData,omitempty"`
}

// Condition types that a template with a pool of addresses has besides those of its own
// controller.
const (
	// ConditionAddressPoolReady: the pool is valid, and gives addresses.
	ConditionAddressPoolReady = "AddressPoolReady"
	// ConditionAddressesFewerThanMachines warns of a pool with fewer addresses than its
	// templates' RunnerPools may have machines.
	ConditionAddressesFewerThanMachines = "AddressesFewerThanMachines"
)

// Network modes.
const (
	NetworkModeDHCP      = "dhcp"
	NetworkModeStatic    = "static"
	NetworkModeCloudInit = "cloud-init"
)

// MachineNetwork is the network of a machine.
// +kubebuilder:validation:XValidation:rule="self.mode != 'static' || has(self.static)",message="network.mode static needs network.static"
type MachineNetwork struct {
	// mode: dhcp, static, or cloud-init (only cloudInit.networkData counts).
	// +optional
	// +kubebuilder:default=dhcp
	// +kubebuilder:validation:Enum=dhcp;static;cloud-init
	Mode string `json:"mode,omitempty"`
	// bridge the first network device is attached to. Default: the cluster's
	// defaultNetwork.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_.-]+$')",message="bridge must be the name of a bridge such as vmbr0"
	Bridge string `json:"bridge,omitempty"`
	// vlan tag of the first network device. Default: untagged.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4094
	VLAN *int32 `json:"vlan,omitempty"`
	// interface in the machine that the addresses are for: its name, or a pattern such as
	// ens*. In cloudInit.networkData it is what a pool's addresses are put in at: an
	// interface's key, set-name or name. Default: the first network device; in
	// cloudInit.networkData, the only interface there is.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_.*?-]+$')",message="interface must be the name of a network interface such as ens18"
	Interface string `json:"interface,omitempty"`
	// dhcp settings.
	// +optional
	DHCP *DHCP `json:"dhcp,omitempty"`
	// static settings. In mode cloud-init only static.pool counts: its addresses go into
	// cloudInit.networkData.
	// +optional
	Static *StaticNetwork `json:"static,omitempty"`
	// dns settings; they replace the cluster's.
	// +optional
	DNS *MachineDNS `json:"dns,omitempty"`
}

// DHCP settings of a machine.
type DHCP struct {
	// enabled asks for an address by DHCP.
	// +optional
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`
	// sendHostname sends the host name in the request.
	// +optional
	// +kubebuilder:default=true
	SendHostname *bool `json:"sendHostname,omitempty"`
	// requestStaticLease keeps the client identifier stable for the host name, so that
	// the server can give the same address again.
	// +optional
	RequestStaticLease bool `json:"requestStaticLease,omitempty"`
	// clientIdentifier is mac, hostname, or any other text, which is sent as it is.
	// +optional
	// +kubebuilder:default=mac
	// +kubebuilder:validation:MaxLength=253
	ClientIdentifier string `json:"clientIdentifier,omitempty"`
	// leaseTime asked for.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) > duration('0s')",message="leaseTime must be a time above zero such as 90s, 15m or 1h30m"
	LeaseTime *metav1.Duration `json:"leaseTime,omitempty"`
	// useRoutes takes the routes that the server gives.
	// +optional
	// +kubebuilder:default=true
	UseRoutes *bool `json:"useRoutes,omitempty"`
	// useDNS takes the name servers that the server gives.
	// +optional
	// +kubebuilder:default=true
	UseDNS *bool `json:"useDNS,omitempty"`
}

// StaticNetwork is a fixed address, or a pool of them. A template with one address can
// carry one machine at a time; one with a pool as many as the pool has addresses.
// +kubebuilder:validation:XValidation:rule="has(self.ipAddress) != has(self.pool)",message="choose one of static.ipAddress, for one machine, and static.pool, for many"
// +kubebuilder:validation:XValidation:rule="!has(self.ipAddress) || has(self.netmask)",message="static.ipAddress needs static.netmask"
// +kubebuilder:validation:XValidation:rule="!has(self.pool) || !(has(self.netmask) || has(self.gateway) || has(self.dns))",message="static.netmask, static.gateway and static.dns belong to static.ipAddress: a pool has prefixLengthV4 and prefixLengthV6, gateway and nameservers of its own"
// +kubebuilder:validation:XValidation:rule="!has(self.ipAddress) || !isIP(self.ipAddress) || !has(self.gateway) || !isIP(self.gateway) || ip(self.ipAddress).family() == ip(self.gateway).family()",message="static.gateway must be of the same address family as static.ipAddress"
// +kubebuilder:validation:XValidation:rule="!has(self.ipAddress) || !has(self.netmask) || !isIP(self.ipAddress) || (isIP(self.netmask) ? ip(self.netmask).family() == ip(self.ipAddress).family() : (!self.netmask.matches('^[0-9]{1,3}$') || int(self.netmask) <= (ip(self.ipAddress).family() == 4 ? 32 : 128)))",message="static.netmask does not fit static.ipAddress: IPv4 takes 255.255.255.0 or 0 to 32, IPv6 takes 0 to 128"
type StaticNetwork struct {
	// ipAddress of the machine.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="static.ipAddress must be an IP address without a prefix length"
	IPAddress string `json:"ipAddress,omitempty"`
	// netmask as an address, e.g. 255.255.255.0, or a prefix length, e.g. 24.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self) || self.matches('^[0-9]{1,3}$')",message="static.netmask must be a mask such as 255.255.255.0 or a prefix length such as 24"
	Netmask string `json:"netmask,omitempty"`
	// gateway of the machine.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self == '' || isIP(self)",message="static.gateway must be an IP address"
	Gateway string `json:"gateway,omitempty"`
	// dns servers of the machine.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(s, isIP(s))",message="static.dns must be IP addresses"
	DNS []string `json:"dns,omitempty"`
	// pool of addresses: each machine gets one of each family that is there, before it is
	// made, and keeps it until it is gone. It needs the operator's networking area.
	// +optional
	Pool *AddressPool `json:"pool,omitempty"`
}

// AddressPool is addresses for many machines on one network, which is the cluster's bridge
// with its VLAN. Templates with the very same addresses, excludedAddresses, gateway and
// prefix lengths on one network share one pool; other pools must not overlap it.
// +kubebuilder:validation:XValidation:rule="!has(self.prefixLengthV4) || self.addresses.exists(a, a.contains('.'))",message="prefixLengthV4 needs IPv4 addresses"
// +kubebuilder:validation:XValidation:rule="!has(self.prefixLengthV6) || self.addresses.exists(a, a.contains(':'))",message="prefixLengthV6 needs IPv6 addresses"
type AddressPool struct {
	// addresses to give, in this order, the lowest free one of an entry first: CIDRs
	// (192.168.10.0/24), ranges (192.168.9.1-192.168.9.5) and single addresses
	// (192.168.1.100/32, 2001:db8::1/128).
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
	// nameservers that machines ask. Default: network.dns.servers.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4
	Nameservers []IPAddress `json:"nameservers,omitempty"`
	// gateway: the way out of the network, one for each family.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:XValidation:rule="self.filter(g, g.contains('.')).size() <= 1 && self.filter(g, g.contains(':')).size() <= 1",message="gateway takes one address of each family"
	Gateway []IPAddress `json:"gateway,omitempty"`
	// prefixLengthV4 of the network's IPv4 subnet. Default: that of the entry of addresses
	// if it is a CIDR, else the smallest that covers the addresses and their gateway.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	PrefixLengthV4 int32 `json:"prefixLengthV4,omitempty"`
	// prefixLengthV6 of the network's IPv6 subnet. Default: as for prefixLengthV4.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	PrefixLengthV6 int32 `json:"prefixLengthV6,omitempty"`
}

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

// AddressPool is the pool that machines of the template get their addresses from; nil
// where they get none of a pool.
func (n *MachineNetwork) AddressPool() *AddressPool {
	if n == nil || n.Static == nil || (n.Mode != NetworkModeStatic && n.Mode != NetworkModeCloudInit) {
		return nil
	}

	return n.Static.Pool
}

// MachineDNS is the DNS configuration of a machine.
type MachineDNS struct {
	// domain completes the host name to the FQDN.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?([.][A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$')",message="dns.domain must be a DNS name such as ci.example.com"
	Domain string `json:"domain,omitempty"`
	// search domains.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	Search []string `json:"search,omitempty"`
	// servers that resolve names.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(s, isIP(s))",message="dns.servers must be IP addresses"
	Servers []string `json:"servers,omitempty"`
}

// MachineMetadata is put on MachineClaims.
type MachineMetadata struct {
	// labels for the MachineClaims.
	// +optional
	// +kubebuilder:validation:MaxProperties=10
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(self[k]) <= 63)",message="labels must have values of at most 63 characters"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !format.qualifiedName().validate(k).hasValue())",message="labels must have valid Kubernetes keys such as team or example.com/team"
	// +kubebuilder:validation:XValidation:rule=`self.all(k, self[k].matches(r'^[\w.-]*$'))`,message="labels must have values of letters, digits, '_', '-' and '.' only"
	Labels map[string]string `json:"labels,omitempty"`
	// annotations for the MachineClaims.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(k, !format.qualifiedName().validate(k).hasValue())",message="annotations must have valid Kubernetes keys such as example.com/note"
	Annotations map[string]string `json:"annotations,omitempty"`
}

// HypervisorMachineTemplateStatus says what the template was resolved to.
type HypervisorMachineTemplateStatus struct {
	// observedGeneration is the generation of the spec that the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions of the template.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// sources are the hypervisor's templates that machines can be cloned from.
	// +optional
	// +listType=map
	// +listMapKey=id
	Sources []ResolvedTemplate `json:"sources,omitempty"`
}

// ResolvedTemplate is one of the hypervisor's templates.
type ResolvedTemplate struct {
	// id on the hypervisor; Proxmox: the VMID.
	ID string `json:"id"`
	// name on the hypervisor.
	// +optional
	Name string `json:"name,omitempty"`
	// node it lives on.
	Node string `json:"node"`
	// diskBytes is the size of its first disk.
	// +optional
	DiskBytes int64 `json:"diskBytes,omitempty"`
}

// HypervisorMachineTemplate is what machines are made from.
//
// +kubebuilder:object:root=true
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="a HypervisorMachineTemplate's name must have at most 63 characters: it is a label of its machines"
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=hmt,categories=hyperfleet
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.hypervisorClusterRef.name`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="CPU",type=integer,JSONPath=`.spec.resources.cpu`
// +kubebuilder:printcolumn:name="Memory",type=string,JSONPath=`.spec.resources.memory`
// +kubebuilder:printcolumn:name="Disk",type=string,JSONPath=`.spec.resources.disk`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type HypervisorMachineTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the machine wanted.
	Spec HypervisorMachineTemplateSpec `json:"spec"`
	// status is what the template was resolved to.
	// +optional
	Status HypervisorMachineTemplateStatus `json:"status,omitempty"`
}

// HypervisorMachineTemplateList is a list of HypervisorMachineTemplate.
//
// +kubebuilder:object:root=true
type HypervisorMachineTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []HypervisorMachineTemplate `json:"items"`
}

// StatusConditions gives the conditions to whoever reports on the object.
func (t *HypervisorMachineTemplate) StatusConditions() *[]metav1.Condition {
	return &t.Status.Conditions
}

// SetObservedGeneration notes the generation that the status speaks of.
func (t *HypervisorMachineTemplate) SetObservedGeneration(generation int64) {
	t.Status.ObservedGeneration = generation
}
