// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConditionRunnerCurrent of a HypervisorMachineTemplate is False if machines run a release of the runner that GitHub
// will soon refuse. It is absent until a machine has reported its release. Machines are created even if it is False.
const ConditionRunnerCurrent = "RunnerCurrent"

// HypervisorMachineTemplateSpec defines what machines are created from.
// +kubebuilder:validation:XValidation:rule="!has(self.bootstrap) || !has(self.bootstrap.method) || self.bootstrap.method != 'external-secrets' || has(self.attestation)",message="bootstrap.method external-secrets needs attestation: machines log in to the secrets manager with their identity"
// +kubebuilder:validation:XValidation:rule="!has(self.network) || self.network.mode != 'cloud-init' || (has(self.cloudInit) && has(self.cloudInit.networkData))",message="network.mode cloud-init needs cloudInit.networkData"
// +kubebuilder:validation:XValidation:rule="!has(self.template.kubevirt) || !has(self.network) || !(has(self.network.bridge) || has(self.network.vlan))",message="network.bridge and network.vlan are not allowed with KubeVirt: name a NetworkAttachmentDefinition in template.kubevirt.network"
// +kubebuilder:validation:XValidation:rule="!has(self.template.kubevirt) || !has(self.template.kubevirt.containerDisk) || !has(self.resources.disk)",message="resources.disk is not allowed with a containerDisk, which has the size of its image: leave it out, or use a dataSource"
// +kubebuilder:validation:XValidation:rule="!has(self.template.kubevirt) || !has(self.bootstrap) || !has(self.bootstrap.delivery) || self.bootstrap.delivery != 'iso'",message="bootstrap.delivery iso is not allowed with KubeVirt, where a cloud-init ISO holds at most 1 MiB: use image or download"
// +kubebuilder:validation:XValidation:rule="!has(self.template.libvirt) || !has(self.network) || !has(self.network.vlan)",message="network.vlan is not allowed with libvirt: set network.bridge to a bridge of the VLAN"
type HypervisorMachineTemplateSpec struct {
	// hypervisorClusterRef names the HypervisorCluster on which machines are created.
	HypervisorClusterRef LocalObjectReference `json:"hypervisorClusterRef"`

	// template is the template on the hypervisor that machines are cloned from.
	Template TemplateSource `json:"template"`

	// resources are the CPU, memory and disk of a machine.
	Resources MachineResources `json:"resources"`

	// attestation defines how a machine proves its identity. Default: machines are not attested.
	// +optional
	Attestation *Attestation `json:"attestation,omitempty"`

	// bootstrap defines how a machine gets its credential and its runner.
	// +optional
	// +kubebuilder:default={}
	Bootstrap Bootstrap `json:"bootstrap,omitempty"`

	// cloudInit holds your own cloud-init data.
	// +optional
	CloudInit *CloudInit `json:"cloudInit,omitempty"`

	// network holds the network settings of a machine.
	// +optional
	Network *MachineNetwork `json:"network,omitempty"`

	// cache names caches in your network that machines use.
	// +optional
	Cache *MachineCache `json:"cache,omitempty"`

	// environment holds environment variables for the runner and its jobs, such as HTTPS_PROXY or
	// GOPROXY. Do not put secrets here. Store secrets in the CI platform.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.matches('^[A-Za-z_][A-Za-z0-9_]{0,127}$'))",message="environment must have names of letters, digits and '_', such as HTTPS_PROXY"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.matches('^(ACTIONS_RUNNER_INPUT|SPIFFE|HYPERFLEET)_'))",message="environment must not have names that begin with ACTIONS_RUNNER_INPUT_, SPIFFE_ or HYPERFLEET_, because the bootstrap service uses them: choose other names"
	Environment map[string]EnvironmentValue `json:"environment,omitempty"`

	// metadata is added to the MachineClaims that are created from this template.
	// +optional
	Metadata *MachineMetadata `json:"metadata,omitempty"`
}

// TemplateSource is a template on a hypervisor. Its type must match the provider of the cluster in
// hypervisorClusterRef.
// +kubebuilder:validation:XValidation:rule="[has(self.proxmox), has(self.kubevirt), has(self.libvirt), has(self.external)].filter(x, x).size() == 1",message="choose one of template.proxmox, template.kubevirt, template.libvirt and template.external, by the provider of the HypervisorCluster"
type TemplateSource struct {
	// proxmox is a template on Proxmox VE.
	// +optional
	Proxmox *ProxmoxTemplate `json:"proxmox,omitempty"`
	// kubevirt is the source of KubeVirt's machines.
	// +optional
	KubeVirt *KubeVirtTemplate `json:"kubevirt,omitempty"`
	// libvirt is a template on libvirt hosts. Machines are created on the hosts that have it.
	// +optional
	Libvirt *LibvirtTemplate `json:"libvirt,omitempty"`
	// external is a template of a provider that is a program of its own.
	// +optional
	External *ExternalTemplate `json:"external,omitempty"`
}

// LibvirtTemplate is a template on libvirt hosts and how it is cloned.
// +kubebuilder:validation:XValidation:rule="[has(self.volume), has(self.domain), has(self.tags)].filter(x, x).size() == 1",message="choose one of libvirt.volume, libvirt.domain and libvirt.tags"
type LibvirtTemplate struct {
	// volume is the name of a disk in the host's storage pool, in qcow2 or raw format.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=200
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_][A-Za-z0-9._-]*$')",message="libvirt.volume must be the name of a volume such as runner.qcow2"
	Volume string `json:"volume,omitempty"`
	// domain is the name of a defined domain that does not run. Machines get its devices, and clones of its
	// only disk.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=200
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^[\w.+-]+$')`,message="libvirt.domain must be the name of a domain such as runner"
	Domain string `json:"domain,omitempty"`
	// tags select the only domain that has all of them in its metadata.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:XValidation:rule=`self.all(t, t.matches(r'^\w[\w.+-]*$'))`,message="libvirt.tags must have letters, digits, '_', '-', '+' and '.' only"
	Tags []string `json:"tags,omitempty"`
	// linkedClone shares the template's disk instead of copying it.
	// +optional
	// +kubebuilder:default=true
	LinkedClone *bool `json:"linkedClone,omitempty"`
}

// KubeVirtTemplate defines the source of a KubeVirt machine's first disk, and its network.
// +kubebuilder:validation:XValidation:rule="[has(self.containerDisk), has(self.dataSource), has(self.persistentVolumeClaim)].filter(x, x).size() == 1",message="choose one of kubevirt.containerDisk, kubevirt.dataSource and kubevirt.persistentVolumeClaim"
// +kubebuilder:validation:XValidation:rule="!has(self.containerDisk) || !has(self.storageClassName)",message="kubevirt.storageClassName is only allowed with dataSource and persistentVolumeClaim, because a containerDisk needs no storage: leave it out"
type KubeVirtTemplate struct {
	// containerDisk is a disk in a container image. It is the fastest source, because nothing is cloned.
	// The disk is deleted with the machine, and everything that the machine writes must fit on its node.
	// +optional
	ContainerDisk *ContainerDisk `json:"containerDisk,omitempty"`
	// dataSource is a DataSource of the Containerized Data Importer (CDI) that is cloned.
	// +optional
	DataSource *KubeVirtSource `json:"dataSource,omitempty"`
	// persistentVolumeClaim is a PersistentVolumeClaim that is cloned.
	// +optional
	PersistentVolumeClaim *KubeVirtSource `json:"persistentVolumeClaim,omitempty"`
	// storageClassName is the storage class of the cloned disk. Default: the storage class of the
	// HypervisorCluster.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || !format.dns1123Subdomain().validate(self).hasValue()",message="kubevirt.storageClassName must be the name of a storage class"
	StorageClassName string `json:"storageClassName,omitempty"`
	// network is the NetworkAttachmentDefinition that machines are attached to, as name or
	// namespace/name. Default: the network of the HypervisorCluster.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^([a-z0-9]([a-z0-9-]*[a-z0-9])?/)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')",message="kubevirt.network must be the name of a NetworkAttachmentDefinition such as vlan20 or networks/vlan20"
	Network string `json:"network,omitempty"`
}

// ContainerDisk is a disk in a container image.
type ContainerDisk struct {
	// image is the name of the image, e.g. quay.io/containerdisks/debian:13. Use a digest if every
	// machine must start from the same bytes.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^[^\s]+$')`,message="containerDisk.image must be the name of an image such as quay.io/containerdisks/debian:13"
	Image string `json:"image"`
	// imagePullSecret is the name of the Secret to pull the image with, in the namespace of the machines.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ImagePullSecret string `json:"imagePullSecret,omitempty"`
}

// KubeVirtSource names an object that a disk is cloned from.
type KubeVirtSource struct {
	// namespace is the namespace of the object. Default: the namespace of the machines. For another
	// namespace, the operator needs permission to clone (cdi.kubevirt.io, datavolumes/source).
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
	// name is the name of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// ProxmoxTemplate is a template on Proxmox VE and how it is cloned.
// +kubebuilder:validation:XValidation:rule="self.cloudInitSource != 'builtin' || has(self.snippetsStorage)",message="cloudInitSource builtin needs snippetsStorage: set it to the storage for the user data"
// +kubebuilder:validation:XValidation:rule="[has(self.templateId), has(self.templateName), has(self.templateTags)].filter(x, x).size() == 1",message="choose the template by exactly one of templateId, templateName and templateTags"
// +kubebuilder:validation:XValidation:rule="!has(self.newest) || !self.newest || has(self.templateTags)",message="newest is only allowed with templateTags: leave it out, or choose the template by its tags"
// +kubebuilder:validation:XValidation:rule="!(has(self.linkedClone) && self.linkedClone && has(self.storage))",message="storage is only for full clones, because a linked clone stays on its template's storage: set linkedClone to false or leave storage out"
type ProxmoxTemplate struct {
	// templateId is the VMID of the template. The template is on one node. Machines can be placed on
	// other nodes only if the template's disks are on shared storage.
	// +optional
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=999999999
	TemplateID *int32 `json:"templateId,omitempty"`
	// templateName is the name of the template. Each node may have a template with this name, so that
	// machines can be placed on each of these nodes from local storage.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	TemplateName string `json:"templateName,omitempty"`
	// templateTags select the template by its tags on Proxmox VE, of which it must have all. All templates
	// with the tags must have the same name, unless newest is set.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:XValidation:rule=`self.all(t, t.matches(r'^\w[\w.+-]*$'))`,message="templateTags must have letters, digits, '_', '-', '+' and '.' only"
	TemplateTags []string `json:"templateTags,omitempty"`
	// newest uses the newest of the templates with the tags: the name whose first template was created
	// last. Pools replace their machines when a newer template gets the tags.
	// +optional
	Newest bool `json:"newest,omitempty"`
	// clone must be true. Machines are always clones of the template.
	// +optional
	// +kubebuilder:default=true
	// +kubebuilder:validation:XValidation:rule="self",message="clone must be true, because machines are always clones of the template"
	Clone *bool `json:"clone,omitempty"`
	// linkedClone shares the template's disks instead of copying them. It needs a storage that supports
	// linked clones: LVM-thin, ZFS, Ceph RBD, or files in qcow2 format.
	// +optional
	// +kubebuilder:default=true
	LinkedClone *bool `json:"linkedClone,omitempty"`
	// storage is the storage for the disks of full clones. Default: the cluster's defaultStorage.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]$')",message="storage must be the ID of a storage: a letter first, then letters, digits, '.', '_' and '-'"
	Storage string `json:"storage,omitempty"`
	// cloudInitSource is the way in which cloud-init data reaches the machine: nocloud uploads an ISO,
	// and builtin uses the cloud-init drive of Proxmox VE and a snippets storage.
	// +optional
	// +kubebuilder:default=nocloud
	// +kubebuilder:validation:Enum=nocloud;builtin
	CloudInitSource string `json:"cloudInitSource,omitempty"`
	// snippetsStorage is the storage for the user data with builtin. Its content types must include
	// snippets. Proxmox VE has no API call to upload snippets, so the storage must be mounted in the
	// operator's pod at runners.snippetsPath of the operator's configuration.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]$')",message="snippetsStorage must be the ID of a storage: a letter first, then letters, digits, '.', '_' and '-'"
	SnippetsStorage string `json:"snippetsStorage,omitempty"`
}

// MachineResources are the resources of a machine.
type MachineResources struct {
	// cpu is the number of CPU cores.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	CPU int32 `json:"cpu"`
	// memory is the amount of memory, e.g. 8Gi. It is rounded up to whole MiB.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? int(self) >= 67108864 : (string(self).matches('^[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$') && quantity(string(self)).compareTo(quantity('64Mi')) >= 0)",message="memory must be at least 64Mi: write a number and the unit Mi, Gi or Ti, such as 8Gi"
	Memory resource.Quantity `json:"memory"`
	// disk is the size of the first disk, e.g. 50Gi. A disk can only grow, so the value must not be
	// smaller than the template's disk. Default: the size of the template's disk.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? int(self) >= 1048576 : (string(self).matches('^[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$') && quantity(string(self)).compareTo(quantity('1Mi')) >= 0)",message="disk must be at least 1Mi: write a number and the unit Mi, Gi or Ti, such as 50Gi"
	Disk *resource.Quantity `json:"disk,omitempty"`
	// nestedVirtualization lets jobs start virtual machines themselves, for example Android emulators. The
	// machine gets the CPU of its node, so it cannot migrate to a node with another CPU. Nested virtualization
	// must be enabled in the kernel of the nodes. Default: as in the template.
	// +optional
	NestedVirtualization bool `json:"nestedVirtualization,omitempty"`
	// devices are devices of the nodes, such as GPUs, that each machine gets for itself while it runs. A machine
	// is placed on a node that has all of them free, and can have at most 16.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.map(d, has(d.count) ? d.count : 1).sum() <= 16",message="devices must be at most 16 in total, because a machine can have no more"
	Devices []MachineDevice `json:"devices,omitempty"`
}

// Attestation methods.
const (
	AttestationJoinToken = "join-token"
	AttestationTPM       = "tpm"
)

// Attestation defines how a machine proves its identity.
type Attestation struct {
	// method is the attestation method: join-token, or tpm (a device identity in the machine's TPM).
	// +kubebuilder:validation:Enum=join-token;tpm
	// +optional
	// +kubebuilder:default=join-token
	Method string `json:"method,omitempty"`
	// config holds the settings of the method.
	// +optional
	Config *AttestationConfig `json:"config,omitempty"`
}

// AttestationConfig holds the settings of the attestation methods.
type AttestationConfig struct {
	// joinTokenTTL is the time within which a join token must be used. Default: 1h.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) > duration('0s')",message="joinTokenTTL must be a time above zero such as 90s, 15m or 1h30m"
	JoinTokenTTL *metav1.Duration `json:"joinTokenTTL,omitempty"`
	// tpmDevice is the path of the TPM's device file in the machine. Default: /dev/tpmrm0.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:XValidation:rule="self == '' || self.startsWith('/dev/')",message="tpmDevice must be a device file such as /dev/tpm0"
	TPMDevice string `json:"tpmDevice,omitempty"`
}

// CloudInit holds your own cloud-init data. Each text is a Go template. docs/reference/cloud-init.md
// lists its variables. The functions toJson and base64 are available.
type CloudInit struct {
	// userData is the user data: #cloud-config or any other format that cloud-init supports.
	// +optional
	// +kubebuilder:validation:MaxLength=262144
	UserData string `json:"userData,omitempty"`
	// metaData is the meta data in YAML. The operator sets instance-id and local-hostname.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	MetaData string `json:"metaData,omitempty"`
	// networkData is a network configuration: network-config version 1 or 2, or OpenStack's
	// network_data.json, in YAML or JSON. It is used with every network mode and replaces the
	// configuration of the mode. The machine's addresses from network.static.pool are inserted at
	// network.interface unless the text already contains them through variables.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	NetworkData string `json:"networkData,omitempty"`
}

// Condition types of a template with an address pool. The networking area sets them.
const (
	// ConditionAddressPoolReady is True if the pool is valid and addresses can be allocated from it.
	ConditionAddressPoolReady = "AddressPoolReady"
	// ConditionAddressesFewerThanMachines warns that the pool has fewer addresses than the RunnerPools of
	// its templates may have machines.
	ConditionAddressesFewerThanMachines = "AddressesFewerThanMachines"
)

// Network modes.
const (
	NetworkModeDHCP      = "dhcp"
	NetworkModeStatic    = "static"
	NetworkModeCloudInit = "cloud-init"
)

// MachineNetwork holds the network settings of a machine.
// +kubebuilder:validation:XValidation:rule="self.mode != 'static' || has(self.static)",message="network.mode static needs network.static"
type MachineNetwork struct {
	// mode is the source of the network configuration: dhcp, static, or cloud-init (cloudInit.networkData
	// alone).
	// +optional
	// +kubebuilder:default=dhcp
	// +kubebuilder:validation:Enum=dhcp;static;cloud-init
	Mode string `json:"mode,omitempty"`
	// bridge is the bridge that the first network device is attached to. Default: the cluster's
	// defaultNetwork.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_.-]+$')",message="bridge must be the name of a bridge such as vmbr0"
	Bridge string `json:"bridge,omitempty"`
	// vlan is the VLAN tag of the first network device. Default: untagged.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4094
	VLAN *int32 `json:"vlan,omitempty"`
	// interface is the network interface in the machine that gets the addresses: its name, or a pattern
	// such as ens*. If cloudInit.networkData is set, interface selects where the addresses of a pool are
	// inserted: it is the key, the set-name or the name of an interface there. Default: the first network
	// device, and with cloudInit.networkData its only interface.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_.*?-]+$')",message="interface must be the name of a network interface such as ens18"
	Interface string `json:"interface,omitempty"`
	// dhcp holds the DHCP settings.
	// +optional
	DHCP *DHCP `json:"dhcp,omitempty"`
	// static holds the static settings. In mode cloud-init only static.pool is used. Its addresses are
	// inserted into cloudInit.networkData.
	// +optional
	Static *StaticNetwork `json:"static,omitempty"`
	// dns holds the DNS settings. They replace the settings of the cluster.
	// +optional
	DNS *MachineDNS `json:"dns,omitempty"`
}

// DHCP holds the DHCP settings of a machine.
type DHCP struct {
	// enabled requests an address by DHCP.
	// +optional
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`
	// sendHostname sends the host name in the DHCP request.
	// +optional
	// +kubebuilder:default=true
	SendHostname *bool `json:"sendHostname,omitempty"`
	// requestStaticLease derives a stable client identifier from the host name, so that the server can
	// assign the same address again.
	// +optional
	RequestStaticLease bool `json:"requestStaticLease,omitempty"`
	// clientIdentifier is mac, hostname, or any other text, which is sent unchanged.
	// +optional
	// +kubebuilder:default=mac
	// +kubebuilder:validation:MaxLength=253
	ClientIdentifier string `json:"clientIdentifier,omitempty"`
	// leaseTime is the requested lease time.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) > duration('0s')",message="leaseTime must be a time above zero such as 90s, 15m or 1h30m"
	LeaseTime *metav1.Duration `json:"leaseTime,omitempty"`
	// useRoutes accepts the routes from the DHCP server.
	// +optional
	// +kubebuilder:default=true
	UseRoutes *bool `json:"useRoutes,omitempty"`
	// useDNS accepts the DNS servers from the DHCP server.
	// +optional
	// +kubebuilder:default=true
	UseDNS *bool `json:"useDNS,omitempty"`
}

// StaticNetwork is a static address or a pool of addresses. A template with one address can have one
// machine at a time. A template with a pool can have as many machines as the pool has addresses.
// +kubebuilder:validation:XValidation:rule="has(self.ipAddress) != has(self.pool)",message="choose one of static.ipAddress (for one machine) and static.pool (for many machines)"
// +kubebuilder:validation:XValidation:rule="!has(self.ipAddress) || has(self.netmask)",message="static.ipAddress needs static.netmask"
// +kubebuilder:validation:XValidation:rule="!has(self.pool) || !(has(self.netmask) || has(self.gateway) || has(self.dns))",message="static.netmask, static.gateway and static.dns are only allowed with static.ipAddress: with static.pool, set prefixLengthV4, prefixLengthV6, gateway and nameservers of the pool"
// +kubebuilder:validation:XValidation:rule="!has(self.ipAddress) || !isIP(self.ipAddress) || !has(self.gateway) || !isIP(self.gateway) || ip(self.ipAddress).family() == ip(self.gateway).family()",message="static.gateway must be of the same address family as static.ipAddress"
// +kubebuilder:validation:XValidation:rule="!has(self.ipAddress) || !has(self.netmask) || !isIP(self.ipAddress) || (isIP(self.netmask) ? ip(self.netmask).family() == ip(self.ipAddress).family() : (!self.netmask.matches('^[0-9]{1,3}$') || int(self.netmask) <= (ip(self.ipAddress).family() == 4 ? 32 : 128)))",message="static.netmask must match static.ipAddress: for IPv4, write a mask such as 255.255.255.0 or a prefix length from 0 to 32; for IPv6, a prefix length from 0 to 128"
type StaticNetwork struct {
	// ipAddress is the IP address of the machine, without a prefix length.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="static.ipAddress must be an IP address without a prefix length"
	IPAddress string `json:"ipAddress,omitempty"`
	// netmask is the network mask as an address, e.g. 255.255.255.0, or as a prefix length, e.g. 24.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self) || self.matches('^[0-9]{1,3}$')",message="static.netmask must be a mask such as 255.255.255.0 or a prefix length such as 24"
	Netmask string `json:"netmask,omitempty"`
	// gateway is the default gateway of the machine.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self == '' || isIP(self)",message="static.gateway must be an IP address"
	Gateway string `json:"gateway,omitempty"`
	// dns are the DNS servers of the machine.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(s, isIP(s))",message="static.dns must be IP addresses"
	DNS []string `json:"dns,omitempty"`
	// pool is a pool of addresses. Each machine gets one address of each address family in the pool. The
	// operator allocates the addresses before it creates the machine and releases them after the machine
	// is deleted. The networking area of the operator must be enabled.
	// +optional
	Pool *AddressPool `json:"pool,omitempty"`
}

// AddressPool holds addresses for many machines in one network. The network is the cluster's bridge with
// its VLAN. Templates share one pool if they have the same addresses, excludedAddresses, gateway and
// prefix lengths in the same network. Different pools in one network must not overlap. The same holds if
// they may be in one network, because the bridge of one of them is not known.
// +kubebuilder:validation:XValidation:rule="!has(self.prefixLengthV4) || self.addresses.exists(a, a.contains('.'))",message="prefixLengthV4 needs IPv4 addresses"
// +kubebuilder:validation:XValidation:rule="!has(self.prefixLengthV6) || self.addresses.exists(a, a.contains(':'))",message="prefixLengthV6 needs IPv6 addresses"
type AddressPool struct {
	// addresses are the addresses to allocate: CIDRs (192.168.10.0/24), ranges (192.168.9.1-192.168.9.5)
	// and single addresses (192.168.1.100/32, 2001:db8::1/128). They are allocated in this order, and in
	// each entry the lowest free address first.
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
	// nameservers are the DNS servers of the machines. Default: network.dns.servers.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4
	Nameservers []IPAddress `json:"nameservers,omitempty"`
	// gateway is the default gateway of the network, one for each address family.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:XValidation:rule="self.filter(g, g.contains('.')).size() <= 1 && self.filter(g, g.contains(':')).size() <= 1",message="gateway must have at most one address of each address family"
	Gateway []IPAddress `json:"gateway,omitempty"`
	// prefixLengthV4 is the prefix length of the network's IPv4 subnet. Default: the prefix length of the
	// entry in addresses if the entry is a CIDR, and otherwise that of the smallest subnet that contains
	// the addresses and their gateway.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	PrefixLengthV4 int32 `json:"prefixLengthV4,omitempty"`
	// prefixLengthV6 is the prefix length of the network's IPv6 subnet. The default is as for
	// prefixLengthV4.
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
// +kubebuilder:validation:XValidation:rule="self.contains('/') || self.split('-').size() != 2 || !self.split('-').all(a, isIP(a.trim())) || ip(self.split('-')[0].trim()).family() == ip(self.split('-')[1].trim()).family()",message="both ends of a range must be of one address family: write one range for IPv4 and one for IPv6"
// +kubebuilder:validation:XValidation:rule="!self.contains('/') || !isCIDR(self) || cidr(self) == cidr(self).masked()",message="a CIDR must not have bits beyond its prefix: write 10.0.0.0/24 for the network, or 10.0.0.5/32 for one address"
type AddressRange string

// IPAddress is an IPv4 or IPv6 address.
//
// +kubebuilder:validation:MaxLength=45
// +kubebuilder:validation:XValidation:rule="isIP(self)",message="it must be an IP address such as 10.0.0.1 or fd00::1"
type IPAddress string

// AddressPool returns the pool from which the template's machines get their addresses, and nil if they
// get no addresses from a pool.
func (n *MachineNetwork) AddressPool() *AddressPool {
	if n == nil || n.Static == nil || (n.Mode != NetworkModeStatic && n.Mode != NetworkModeCloudInit) {
		return nil
	}

	return n.Static.Pool
}

// MachineDNS holds the DNS settings of a machine.
type MachineDNS struct {
	// domain is appended to the host name to build the FQDN.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?([.][A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$')",message="dns.domain must be a DNS name such as ci.example.com"
	Domain string `json:"domain,omitempty"`
	// search are the search domains.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	Search []string `json:"search,omitempty"`
	// servers are the DNS servers.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(s, isIP(s))",message="dns.servers must be IP addresses"
	Servers []string `json:"servers,omitempty"`
}

// MachineMetadata is added to MachineClaims.
type MachineMetadata struct {
	// labels are added to the MachineClaims.
	// +optional
	// +kubebuilder:validation:MaxProperties=10
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(self[k]) <= 63)",message="labels must have values of at most 63 characters"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !format.qualifiedName().validate(k).hasValue())",message="labels must have valid Kubernetes keys such as team or example.com/team"
	// +kubebuilder:validation:XValidation:rule=`self.all(k, self[k].matches(r'^[\w.-]*$'))`,message="labels must have values of letters, digits, '_', '-' and '.' only"
	Labels map[string]string `json:"labels,omitempty"`
	// annotations are added to the MachineClaims.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(k, !format.qualifiedName().validate(k).hasValue())",message="annotations must have valid Kubernetes keys such as example.com/note"
	Annotations map[string]string `json:"annotations,omitempty"`
}

// HypervisorMachineTemplate defines what machines are created from.
//
// +kubebuilder:object:root=true
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name of a HypervisorMachineTemplate must have at most 63 characters, because it is the value of a label"
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

	// spec is the desired machine.
	Spec HypervisorMachineTemplateSpec `json:"spec"`
	// status is the observed state of the template.
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

// StatusConditions returns a pointer to the conditions, for kit/step.
func (t *HypervisorMachineTemplate) StatusConditions() *[]metav1.Condition {
	return &t.Status.Conditions
}

// SetObservedGeneration records the generation that the status describes.
func (t *HypervisorMachineTemplate) SetObservedGeneration(generation int64) {
	t.Status.ObservedGeneration = generation
}
