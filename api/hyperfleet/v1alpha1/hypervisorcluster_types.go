// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Providers of HypervisorClusters.
const (
	ProviderProxmox  = "proxmox"
	ProviderKubeVirt = "kubevirt"
	ProviderLibvirt  = "libvirt"
	ProviderExternal = "external"
)

// HypervisorClusterSpec defines the connection to a hypervisor and what may be used of it.
// +kubebuilder:validation:XValidation:rule="self.provider != 'proxmox' || (has(self.endpoint) && has(self.credentials))",message="provider proxmox needs endpoint and credentials"
// +kubebuilder:validation:XValidation:rule="(self.provider == 'kubevirt') == has(self.kubevirt)",message="kubevirt is required with provider kubevirt and not allowed with other providers: with kubevirt, set at least kubevirt.namespace"
// +kubebuilder:validation:XValidation:rule="self.provider != 'kubevirt' || !(has(self.endpoint) || has(self.credentials) || has(self.tls) || has(self.defaultStorage) || has(self.isoStorage) || has(self.defaultNetwork) || has(self.resourcePool))",message="endpoint, credentials, tls, defaultStorage, isoStorage, defaultNetwork and resourcePool are not allowed with provider kubevirt: use the settings in kubevirt"
// +kubebuilder:validation:XValidation:rule="(self.provider == 'libvirt') == has(self.libvirt)",message="libvirt is required with provider libvirt and not allowed with other providers: with libvirt, list at least one host in libvirt.hosts"
// +kubebuilder:validation:XValidation:rule="self.provider != 'libvirt' || !(has(self.endpoint) || has(self.nodes) || has(self.defaultStorage) || has(self.isoStorage) || has(self.defaultNetwork) || has(self.resourcePool))",message="endpoint, nodes, defaultStorage, isoStorage, defaultNetwork and resourcePool are not allowed with provider libvirt: use the settings in libvirt"
// +kubebuilder:validation:XValidation:rule="self.provider != 'libvirt' || !has(self.credentials) || !(has(self.credentials.tokenId) || has(self.credentials.username))",message="libvirt has no API tokens and no passwords: use credentials.clientCert and clientKey, or credentials.sshPrivateKey"
// +kubebuilder:validation:XValidation:rule="self.provider == 'libvirt' || !has(self.credentials) || !has(self.credentials.sshPrivateKey)",message="credentials.sshPrivateKey is only allowed with provider libvirt"
// +kubebuilder:validation:XValidation:rule="!has(self.libvirt) || !self.libvirt.hosts.exists(h, h.uri.startsWith('qemu+tls:')) || (has(self.credentials) && has(self.credentials.clientCert))",message="hosts with qemu+tls need credentials.clientCert and credentials.clientKey"
// +kubebuilder:validation:XValidation:rule="!has(self.libvirt) || !self.libvirt.hosts.exists(h, h.uri.startsWith('qemu+ssh:')) || (has(self.credentials) && has(self.credentials.sshPrivateKey))",message="hosts with qemu+ssh need credentials.sshPrivateKey"
// +kubebuilder:validation:XValidation:rule="(self.provider == 'external') == has(self.external)",message="external is required with provider external and not allowed with other providers: with external, set external.address"
// +kubebuilder:validation:XValidation:rule="self.provider != 'external' || !has(self.endpoint)",message="endpoint is not allowed with provider external: use external.address"
// +kubebuilder:validation:XValidation:rule="self.provider != 'external' || !has(self.credentials) || !(has(self.credentials.tokenId) || has(self.credentials.username))",message="with provider external, only credentials.clientCert and clientKey are used: the provider has the credentials of its hypervisor itself"
// +kubebuilder:validation:XValidation:rule="self.provider != 'external' || !has(self.tls) || !has(self.tls.insecureSkipVerify) || !self.tls.insecureSkipVerify",message="tls.insecureSkipVerify is not allowed with provider external: use tls.caBundle or tls.fingerprint"
// +kubebuilder:validation:XValidation:rule="!has(self.external) || self.external.address.startsWith('unix:') || (has(self.credentials) && has(self.credentials.clientCert))",message="a provider with an address HOST:PORT needs credentials.clientCert and credentials.clientKey"
// +kubebuilder:validation:XValidation:rule="self.provider == 'proxmox' || !has(self.limits) || !has(self.limits.memoryPercent)",message="limits.memoryPercent is only allowed with provider proxmox: use maxMemory of the hosts with libvirt"
type HypervisorClusterSpec struct {
	// provider is the type of the hypervisor: proxmox (Proxmox VE), kubevirt, libvirt, or external for a
	// provider that is a program of its own.
	// +kubebuilder:validation:Enum=proxmox;kubevirt;libvirt;external
	Provider string `json:"provider"`

	// endpoint is the base URL of the API, e.g. https://pve.example.com:8006/api2/json. It is only used
	// with provider proxmox.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() == 'https' && url(self).getHostname() != ''",message="endpoint must be an https URL such as https://pve.example.com:8006/api2/json"
	// +kubebuilder:validation:XValidation:rule="!self.contains('@') && !self.contains('?') && !self.contains('#')",message="endpoint must not contain credentials, a query or a fragment: put credentials into a Secret"
	Endpoint string `json:"endpoint,omitempty"`

	// credentials are the credentials for the endpoint. Each is stored in a Secret. They are not used
	// with provider kubevirt.
	// +optional
	Credentials HypervisorCredentials `json:"credentials,omitzero"`

	// kubevirt defines where KubeVirt's machines are created. It is required with provider kubevirt.
	// +optional
	KubeVirt *KubeVirtCluster `json:"kubevirt,omitempty"`

	// libvirt lists the hosts of a cluster with provider libvirt. It is required with this provider.
	// +optional
	Libvirt *LibvirtCluster `json:"libvirt,omitempty"`

	// external is a provider that is a program of its own. It is required with provider external.
	// +optional
	External *ExternalProvider `json:"external,omitempty"`

	// tls defines which server certificate of the endpoint, of hosts with qemu+tls, or of an external
	// provider is trusted. Default: the system's certificate authorities.
	// +optional
	TLS *HypervisorTLS `json:"tls,omitempty"`

	// allowedNamespaces are the namespaces that may create machines on this cluster, each entry with its
	// own limits. If several entries match a namespace, the first one counts. Default: all namespaces,
	// without limits. Existing machines are not affected.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	AllowedNamespaces []NamespaceAccess `json:"allowedNamespaces,omitempty"`

	// nodes are the names of the nodes on which machines may run. Default: every online node of the
	// cluster.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.all(n, n.matches('^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$'))",message="nodes must be names of nodes as the hypervisor shows them, e.g. pve-node-1"
	Nodes []string `json:"nodes,omitempty"`

	// defaultStorage is the storage for the disks of full clones. A template can override it.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]$')",message="defaultStorage must be the ID of a storage: a letter first, then letters, digits, '.', '_' and '-'"
	DefaultStorage string `json:"defaultStorage,omitempty"`

	// isoStorage is the storage for cloud-init ISOs. Its content types must include iso. Default: the
	// first active storage of the node with content type iso.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]$')",message="isoStorage must be the ID of a storage: a letter first, then letters, digits, '.', '_' and '-'"
	ISOStorage string `json:"isoStorage,omitempty"`

	// defaultNetwork is the bridge that machines are attached to. A template can override it. Default:
	// the bridge of the template's own network device.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_.-]+$')",message="defaultNetwork must be the name of a bridge such as vmbr0"
	DefaultNetwork string `json:"defaultNetwork,omitempty"`

	// resourcePool is the hypervisor's pool in which machines are created (Proxmox VE: pool), so that
	// permissions can be granted on the pool.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+){0,2}$')",message="resourcePool must be the ID of a pool such as ci or ci/linux"
	ResourcePool string `json:"resourcePool,omitempty"`

	// vmIdRange is the range of IDs for machines, both ends included.
	// +optional
	// +kubebuilder:default={min: 100000, max: 199999}
	VMIDRange *VMIDRange `json:"vmIdRange,omitempty"`

	// limits bound the load on the hypervisor.
	// +optional
	// +kubebuilder:default={}
	Limits *HypervisorLimits `json:"limits,omitempty"`

	// dns holds the DNS settings for machines on this cluster.
	// +optional
	DNS *HypervisorDNS `json:"dns,omitempty"`

	// network holds the network tests for machines on this cluster.
	// +optional
	Network *HypervisorNetwork `json:"network,omitempty"`

	// tags describe the cluster. Each of its machines gets them as tags of the form KEY-VALUE. Keys and
	// values may contain only letters, digits, '_', '-', '+' and '.'.
	// +optional
	// +kubebuilder:validation:MaxProperties=10
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 63 && size(self[k]) <= 63)",message="tags must have keys and values of at most 63 characters"
	// +kubebuilder:validation:XValidation:rule=`self.all(k, k.matches(r'^\w[\w.+-]*$'))`,message="tags must have keys of letters, digits, '_', '-', '+' and '.' only, with a letter, digit or '_' first"
	// +kubebuilder:validation:XValidation:rule=`self.all(k, self[k].matches(r'^[\w.+-]+$'))`,message="tags must have values of letters, digits, '_', '-', '+' and '.' only"
	Tags map[string]string `json:"tags,omitempty"`
}

// KubeVirtCluster is a namespace of a Kubernetes cluster with KubeVirt.
type KubeVirtCluster struct {
	// namespace is the namespace in which machines and their Secrets are created, on the cluster of
	// kubeconfigSecretRef. Do not give people access to it, because its Secrets contain the credentials
	// of machines that are about to start.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Label().validate(self).hasValue()",message="kubevirt.namespace must be the name of a namespace such as machines"
	Namespace string `json:"namespace"`
	// kubeconfigSecretRef selects a self-contained kubeconfig. It must not refer to files or run programs
	// to authenticate. Default: the operator's own cluster.
	// +optional
	KubeconfigSecretRef *SecretKeySelector `json:"kubeconfigSecretRef,omitempty"`
	// storageClassName is the storage class of disks that are cloned from data sources and volumes.
	// Default: the default storage class of the cluster.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || !format.dns1123Subdomain().validate(self).hasValue()",message="kubevirt.storageClassName must be the name of a storage class"
	StorageClassName string `json:"storageClassName,omitempty"`
	// network is the NetworkAttachmentDefinition that machines are attached to, as name or
	// namespace/name. A template can override it. Default: the pod network.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^([a-z0-9]([a-z0-9-]*[a-z0-9])?/)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')",message="kubevirt.network must be the name of a NetworkAttachmentDefinition such as vlan20 or networks/vlan20"
	Network string `json:"network,omitempty"`
	// nodeSelector selects by labels the nodes on which machines may run. Default: all nodes that
	// KubeVirt uses.
	// +optional
	// +kubebuilder:validation:MaxProperties=8
	// +kubebuilder:validation:XValidation:rule="self.all(k, !format.qualifiedName().validate(k).hasValue())",message="kubevirt.nodeSelector must have valid Kubernetes keys such as example.com/ci"
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(self[k]) <= 63)",message="kubevirt.nodeSelector must have values of at most 63 characters"
	// +kubebuilder:validation:XValidation:rule=`self.all(k, self[k].matches(r'^[\w.-]*$'))`,message="kubevirt.nodeSelector must have values of letters, digits, '_', '-' and '.' only"
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
}

// LibvirtCluster is a set of libvirt hosts with QEMU. The hosts need not know each other: the operator
// places the machines.
type LibvirtCluster struct {
	// hosts are the hosts. A host that is removed from the list is forgotten with its machines, so remove it
	// only if it is gone or empty.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	Hosts []LibvirtHost `json:"hosts"`
	// domainType is the type of the machines' domains: kvm, or qemu for software emulation, which is many
	// times slower. Default: kvm on hosts that have it, and qemu on others.
	// +optional
	// +kubebuilder:validation:Enum=kvm;qemu
	DomainType string `json:"domainType,omitempty"`
}

// LibvirtHost is one libvirt host.
// +kubebuilder:validation:XValidation:rule="!(has(self.network) && has(self.bridge))",message="choose at most one of network and bridge"
// +kubebuilder:validation:XValidation:rule="self.uri.startsWith('qemu+ssh:') == has(self.sshHostKey)",message="sshHostKey is required with qemu+ssh and not allowed with other URIs: set it to the fingerprint that ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub prints on the host"
type LibvirtHost struct {
	// name is the name of the host in messages and in status.nodes.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$')",message="name must have letters, digits and '-' only, such as host-1"
	Name string `json:"name"`
	// uri is libvirt's URI of the host: qemu+tls://HOST/system, qemu+ssh://USER@HOST/system, or
	// qemu+unix:///system if libvirtd's socket is mounted in the operator's pod.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^qemu([+]tls://[\w.:\[\]-]+|[+]ssh://([\w.-]+@)?[\w.:\[\]-]+|[+]unix://)/(system|session)([?]socket=/[\w./-]+)?$')`,message="uri must be a URI such as qemu+tls://host.example.com/system, qemu+ssh://user@host.example.com/system or qemu+unix:///system"
	URI string `json:"uri"`
	// sshHostKey is the SHA256 fingerprint of the SSH key that the host must present, as ssh-keygen -l
	// prints it.
	// +optional
	// +kubebuilder:validation:MaxLength=50
	// +kubebuilder:validation:XValidation:rule="self.matches('^SHA256:[A-Za-z0-9+/]{43}$')",message="sshHostKey must be a fingerprint as ssh-keygen -l prints it: SHA256: and 43 characters"
	SSHHostKey string `json:"sshHostKey,omitempty"`
	// storagePool is the storage pool of the machines' disks and cloud-init ISOs, and of template volumes.
	// Its type must be dir, fs or netfs.
	// +optional
	// +kubebuilder:default=default
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9._-]+$')",message="storagePool must be the name of a storage pool such as default"
	StoragePool string `json:"storagePool,omitempty"`
	// network is the virtual network of the host that machines are attached to, e.g. default. If neither
	// network nor bridge is set, each machine has a network of its own (QEMU's user mode): it reaches the
	// host's network, and nothing reaches it.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9._-]+$')",message="network must be the name of a virtual network such as default"
	Network string `json:"network,omitempty"`
	// bridge is the bridge of the host that machines are attached to. A template can override it.
	// +optional
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_.-]+$')",message="bridge must be the name of a bridge such as br0"
	Bridge string `json:"bridge,omitempty"`
	// maxCPU is the number of virtual CPUs that running machines may have together. Default: no limit, so
	// machines share the cores of the host.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4096
	MaxCPU int32 `json:"maxCPU,omitempty"`
	// maxMemory is the memory that running machines may have together, e.g. 56Gi. Leave some for the host
	// itself. Default: the memory of the host.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$`
	MaxMemory *resource.Quantity `json:"maxMemory,omitempty"`
	// maxStoragePercent is the usage of the storage pool from which the host gets no more machines.
	// +optional
	// +kubebuilder:default=90
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	MaxStoragePercent int32 `json:"maxStoragePercent,omitempty"`
	// devices are PCI devices of the host that machines can get with resources.devices of their template.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Devices []LibvirtDevice `json:"devices,omitempty"`
}

// HypervisorCredentials are the ways to authenticate. Set either the API token or the username with the
// password. A client certificate may be added to either. It may also be set alone if a proxy in front of
// the API authenticates by it.
// +kubebuilder:validation:XValidation:rule="has(self.tokenId) == has(self.tokenSecret)",message="tokenId and tokenSecret belong together: set both or neither"
// +kubebuilder:validation:XValidation:rule="has(self.username) == has(self.password)",message="username and password belong together: set both or neither"
// +kubebuilder:validation:XValidation:rule="has(self.clientCert) == has(self.clientKey)",message="clientCert and clientKey belong together: set both or neither"
// +kubebuilder:validation:XValidation:rule="!(has(self.tokenId) && has(self.username))",message="choose one of API token (tokenId, tokenSecret) and username with password"
// +kubebuilder:validation:XValidation:rule="has(self.tokenId) || has(self.username) || has(self.clientCert) || has(self.sshPrivateKey)",message="choose a way to authenticate: an API token (tokenId, tokenSecret), a username with password, a client certificate (clientCert, clientKey), or an SSH key (sshPrivateKey)"
type HypervisorCredentials struct {
	// tokenId is the full name of the API token, e.g. hyperfleet@pve!operator.
	// +optional
	TokenID *SecretValueSource `json:"tokenId,omitempty"`
	// tokenSecret is the UUID of the API token.
	// +optional
	TokenSecret *SecretValueSource `json:"tokenSecret,omitempty"`
	// username is the name of the user with its realm, e.g. hyperfleet@pve.
	// +optional
	Username *SecretValueSource `json:"username,omitempty"`
	// password is the password of the user.
	// +optional
	Password *SecretValueSource `json:"password,omitempty"`
	// clientCert is the TLS client certificate for the endpoint, in PEM.
	// +optional
	ClientCert *SecretValueSource `json:"clientCert,omitempty"`
	// clientKey is the private key of clientCert, in PEM.
	// +optional
	ClientKey *SecretValueSource `json:"clientKey,omitempty"`
	// sshPrivateKey is the private key for hosts with qemu+ssh, in PEM without a passphrase.
	// +optional
	SSHPrivateKey *SecretValueSource `json:"sshPrivateKey,omitempty"`
}

// HypervisorTLS defines which server certificate is trusted.
// +kubebuilder:validation:XValidation:rule="[has(self.caBundle), has(self.fingerprint), has(self.insecureSkipVerify) && self.insecureSkipVerify].filter(x, x).size() <= 1",message="choose at most one of caBundle, fingerprint and insecureSkipVerify"
type HypervisorTLS struct {
	// caBundle is a PEM bundle of certificate authorities, in base64.
	// +optional
	// +kubebuilder:validation:MaxLength=262144
	CABundle []byte `json:"caBundle,omitempty"`
	// fingerprint is the SHA-256 fingerprint of the only trusted server certificate, as Proxmox VE shows
	// it: 32 pairs of hexadecimal digits with colons between them.
	// +optional
	// +kubebuilder:validation:MaxLength=95
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9A-Fa-f]{2}:){31}[0-9A-Fa-f]{2}$')",message="fingerprint must be a SHA-256 as Proxmox shows it: 32 pairs of hexadecimal digits with colons between"
	Fingerprint string `json:"fingerprint,omitempty"`
	// insecureSkipVerify trusts any certificate. The cluster then has the condition InsecureTLS=True.
	// +optional
	InsecureSkipVerify bool `json:"insecureSkipVerify,omitempty"`
}

// VMIDRange is a range of machine IDs, both ends included.
// +kubebuilder:validation:XValidation:rule="self.min <= self.max",message="vmIdRange.min must not be above vmIdRange.max"
type VMIDRange struct {
	// min is the lowest ID. Proxmox VE reserves IDs below 100.
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=999999999
	Min int32 `json:"min"`
	// max is the highest ID.
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=999999999
	Max int32 `json:"max"`
}

// HypervisorLimits bound the concurrent operations on the hypervisor.
type HypervisorLimits struct {
	// clonesPerStorage is the maximum number of concurrent clones on one storage.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	ClonesPerStorage int32 `json:"clonesPerStorage,omitempty"`
	// callsPerNode is the maximum number of concurrent API calls to one node. A Proxmox VE node runs
	// three API workers.
	// +optional
	// +kubebuilder:default=4
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	CallsPerNode int32 `json:"callsPerNode,omitempty"`
	// memoryPercent is the share of a node's memory, in percent, that its running VMs may have together. The
	// rest is left for the node itself, for example for the cache of ZFS. It is only allowed with provider
	// proxmox. Default: all of the memory.
	// +optional
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=100
	MemoryPercent int32 `json:"memoryPercent,omitempty"`
}

// HypervisorDNS holds the DNS settings of a cluster's machines.
// +kubebuilder:validation:XValidation:rule="!has(self.registerVMs) || !self.registerVMs || (has(self.dnsProvider) && has(self.domain))",message="dns.registerVMs needs dns.domain and dns.dnsProvider: set the domain to write to and the service that holds its zone"
// +kubebuilder:validation:XValidation:rule="!has(self.dnsProvider) || !has(self.dnsProvider.zones) || !has(self.domain) || size(self.domain) == 0 || self.dnsProvider.zones.exists(z, self.domain.lowerAscii() == z.lowerAscii() || self.domain.lowerAscii().endsWith('.' + z.lowerAscii()))",message="dns.dnsProvider.zones must contain the zone of dns.domain: dns.domain itself or a parent domain"
type HypervisorDNS struct {
	// domain is appended to a machine's host name to build its FQDN.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?([.][A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$')",message="dns.domain must be a DNS name such as ci.example.com"
	Domain string `json:"domain,omitempty"`
	// search are the search domains of machines.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	Search []string `json:"search,omitempty"`
	// servers are the DNS servers of machines.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(s, isIP(s))",message="dns.servers must be IP addresses"
	Servers []string `json:"servers,omitempty"`
	// registerVMs registers the addresses of each machine in DNS through dnsProvider.
	// +optional
	RegisterVMs bool `json:"registerVMs,omitempty"`
	// dnsProvider is the DNS service in which registerVMs creates records.
	// +optional
	DNSProvider *DNSProvider `json:"dnsProvider,omitempty"`
	// validation defines how the DNS records of machines are checked.
	// +optional
	Validation *DNSValidation `json:"validation,omitempty"`
}

// DNSProvider names a DNS service, its credentials, and the zones in which the operator may create
// records.
// +kubebuilder:validation:XValidation:rule="(self.type == 'rfc2136') == has(self.server)",message="dnsProvider.server is required with type rfc2136 and not allowed with other types: with rfc2136, set the server that accepts the updates, such as 192.0.2.53:53"
// +kubebuilder:validation:XValidation:rule="self.type != 'rfc2136' || (has(self.credentials) && 'keyName' in self.credentials && 'key' in self.credentials && self.credentials.all(k, k in ['keyName', 'key', 'keyAlgorithm']))",message="rfc2136 needs the credentials keyName and key (a TSIG key), and optionally keyAlgorithm"
// +kubebuilder:validation:XValidation:rule="self.type != 'cloudflare' || (has(self.credentials) && 'apiToken' in self.credentials && self.credentials.all(k, k in ['apiToken', 'zoneToken']))",message="cloudflare needs the credential apiToken, and optionally zoneToken"
// +kubebuilder:validation:XValidation:rule="self.type != 'route53' || !has(self.credentials) || size(self.credentials) == 0 || ('accessKeyId' in self.credentials && 'secretAccessKey' in self.credentials && self.credentials.all(k, k in ['accessKeyId', 'secretAccessKey', 'sessionToken', 'region', 'hostedZoneId']))",message="route53 needs the credentials accessKeyId and secretAccessKey, and optionally sessionToken, region and hostedZoneId; or no credentials if the operator's pod has an IAM role"
type DNSProvider struct {
	// type is the DNS service: route53, cloudflare or rfc2136 (dynamic updates).
	// +kubebuilder:validation:Enum=route53;cloudflare;rfc2136
	Type string `json:"type"`
	// credentials maps the names that the service's documentation uses to Secrets, e.g. accessKeyId and
	// secretAccessKey for route53.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Credentials map[string]SecretValueSource `json:"credentials,omitempty"`
	// server is the DNS server that accepts the updates with type rfc2136, as host:port. It must also
	// allow zone transfers (AXFR) with the key, because the operator reads the existing records in this
	// way.
	// +optional
	// +kubebuilder:validation:MaxLength=260
	// +kubebuilder:validation:XValidation:rule="self.matches('^([A-Za-z0-9.-]+|\\\\[[0-9A-Fa-f:.]+\\\\]):[0-9]{1,5}$')",message="dnsProvider.server must be host:port such as 192.0.2.53:53 or [2001:db8::53]:53"
	Server string `json:"server,omitempty"`
	// zones are the forward and reverse zones in which the operator may create records, e.g.
	// ci.example.com and 2.0.192.in-addr.arpa. A record is created in the longest matching zone. An
	// address without a matching reverse zone gets no PTR record. Default: dns.domain.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.all(z, z.matches('^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?([.][A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$'))",message="dnsProvider.zones must be DNS names without a trailing dot, such as ci.example.com or 2.0.192.in-addr.arpa"
	Zones []string `json:"zones,omitempty"`
	// ttlSeconds is the TTL of the records, in seconds.
	// +optional
	// +kubebuilder:default=300
	// +kubebuilder:validation:Minimum=60
	// +kubebuilder:validation:Maximum=86400
	TTLSeconds int32 `json:"ttlSeconds,omitempty"`
}

// DNSValidation defines how the DNS records of machines are checked.
type DNSValidation struct {
	// enabled enables the validation.
	// +optional
	Enabled bool `json:"enabled,omitempty"`
	// validateOnReady checks the records once when a machine becomes Ready.
	// +optional
	ValidateOnReady bool `json:"validateOnReady,omitempty"`
	// validateInterval is the interval at which the check is repeated.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) > duration('0s')",message="validateInterval must be a time above zero such as 90s, 15m or 1h30m"
	ValidateInterval *metav1.Duration `json:"validateInterval,omitempty"`
	// validateReverse also checks the PTR record.
	// +optional
	ValidateReverse bool `json:"validateReverse,omitempty"`
	// timeoutSeconds is the timeout of one lookup, in seconds.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=300
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
	// expectedDomain is the domain in which the names must be. Default: dns.domain.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ExpectedDomain string `json:"expectedDomain,omitempty"`
}

// HypervisorNetwork holds the network tests of a cluster's machines.
type HypervisorNetwork struct {
	// validation defines how the reachability of machines is tested.
	// +optional
	Validation *NetworkValidation `json:"validation,omitempty"`
}

// NetworkValidation defines how the reachability of machines is tested.
type NetworkValidation struct {
	// enabled enables the validation.
	// +optional
	Enabled bool `json:"enabled,omitempty"`
	// pingTest sends an ICMP echo request to the machine.
	// +optional
	PingTest bool `json:"pingTest,omitempty"`
	// sshTest opens a TCP connection to port 22 and reads the banner.
	// +optional
	SSHTest bool `json:"sshTest,omitempty"`
	// validateInterval is the interval at which the tests are repeated. Default:
	// dns.validation.validateInterval. If neither is set, a machine is tested until the tests have passed
	// once.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) > duration('0s')",message="validateInterval must be a time above zero such as 90s, 15m or 1h30m"
	ValidateInterval *metav1.Duration `json:"validateInterval,omitempty"`
	// timeoutSeconds is the timeout of one test, in seconds.
	// +optional
	// +kubebuilder:default=30
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=300
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
}

// HypervisorClusterStatus is the observed state of the hypervisor.
type HypervisorClusterStatus struct {
	// observedGeneration is the generation of the spec that the status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions are the conditions of the cluster.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// version is the version of the hypervisor's software.
	// +optional
	Version string `json:"version,omitempty"`
	// connectedNodes is the number of usable nodes that are online.
	// +optional
	ConnectedNodes int32 `json:"connectedNodes,omitempty"`
	// availableResources are the free resources of all usable nodes together.
	// +optional
	AvailableResources *ResourceAmounts `json:"availableResources,omitempty"`
	// nodes are the nodes on which machines may run, with their free resources.
	// +optional
	// +listType=map
	// +listMapKey=name
	Nodes []HypervisorNodeStatus `json:"nodes,omitempty"`
	// machines is the number of this operator's machines on the cluster.
	// +optional
	Machines int32 `json:"machines,omitempty"`
}

// ResourceAmounts are amounts of CPU, memory and storage.
type ResourceAmounts struct {
	// cpu is the number of CPU cores.
	CPU int64 `json:"cpu"`
	// memory is the amount of memory in bytes.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^-?[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$`
	Memory resource.Quantity `json:"memory"`
	// storage is the amount of storage in bytes.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^-?[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$`
	Storage resource.Quantity `json:"storage,omitempty"`
}

// HypervisorNodeStatus is the observed state of a node.
type HypervisorNodeStatus struct {
	// name is the name of the node.
	Name string `json:"name"`
	// online is true if the node responds.
	Online bool `json:"online"`
	// available are the free resources of the node.
	// +optional
	Available *ResourceAmounts `json:"available,omitempty"`
	// capacity are the total resources of the node.
	// +optional
	Capacity *ResourceAmounts `json:"capacity,omitempty"`
	// conditions are the conditions of the node. Ready is False with reason Offline while no machines are
	// placed on the node, and with reason Excluded while some machines are not placed on the node after
	// failures.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// HypervisorCluster is the connection to a hypervisor cluster.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=hvc,categories=hyperfleet
// +kubebuilder:printcolumn:name="Provider",type=string,JSONPath=`.spec.provider`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.connectedNodes`
// +kubebuilder:printcolumn:name="Machines",type=integer,JSONPath=`.status.machines`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`
// +kubebuilder:printcolumn:name="Endpoint",type=string,priority=1,JSONPath=`.spec.endpoint`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type HypervisorCluster struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired connection.
	Spec HypervisorClusterSpec `json:"spec"`
	// status is the observed state of the hypervisor.
	// +optional
	Status HypervisorClusterStatus `json:"status,omitempty"`
}

// HypervisorClusterList is a list of HypervisorCluster.
//
// +kubebuilder:object:root=true
type HypervisorClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []HypervisorCluster `json:"items"`
}

// StatusConditions returns a pointer to the conditions, for kit/step.
func (c *HypervisorCluster) StatusConditions() *[]metav1.Condition { return &c.Status.Conditions }

// SetObservedGeneration records the generation that the status describes.
func (c *HypervisorCluster) SetObservedGeneration(generation int64) {
	c.Status.ObservedGeneration = generation
}

// ReasonConnectedWithWarnings is the reason of the condition Connected of a HypervisorCluster that can be used, although
// something is wrong. The message says what.
const ReasonConnectedWithWarnings = "ConnectedWithWarnings"
