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
)

// HypervisorClusterSpec says how a hypervisor is reached and what of it may be used.
// +kubebuilder:validation:XValidation:rule="self.provider != 'proxmox' || (has(self.endpoint) && has(self.credentials))",message="provider proxmox needs endpoint and credentials"
// +kubebuilder:validation:XValidation:rule="(self.provider == 'kubevirt') == has(self.kubevirt)",message="kubevirt belongs to provider kubevirt, and to no other: say at least kubevirt.namespace"
// +kubebuilder:validation:XValidation:rule="self.provider != 'kubevirt' || !(has(self.endpoint) || has(self.credentials) || has(self.tls) || has(self.defaultStorage) || has(self.isoStorage) || has(self.defaultNetwork) || has(self.resourcePool))",message="endpoint, credentials, tls, defaultStorage, isoStorage, defaultNetwork and resourcePool do not belong to provider kubevirt: its settings are in kubevirt"
type HypervisorClusterSpec struct {
	// provider is the kind of hypervisor.
	// +kubebuilder:validation:Enum=proxmox;kubevirt
	Provider string `json:"provider"`

	// endpoint is the API's base URL, e.g. https://pve.example.com:8006/api2/json. Provider
	// kubevirt has none.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="isURL(self) && url(self).getScheme() == 'https' && url(self).getHostname() != ''",message="endpoint must be an https URL such as https://pve.example.com:8006/api2/json"
	// +kubebuilder:validation:XValidation:rule="!self.contains('@') && !self.contains('?') && !self.contains('#')",message="endpoint must hold no credentials, query or fragment: credentials belong in a Secret"
	Endpoint string `json:"endpoint,omitempty"`

	// credentials for the endpoint, each kept in a Secret. Provider kubevirt has none.
	// +optional
	Credentials HypervisorCredentials `json:"credentials,omitzero"`

	// kubevirt says where KubeVirt's machines are made.
	// +optional
	KubeVirt *KubeVirtCluster `json:"kubevirt,omitempty"`

	// tls says how the endpoint's certificate is trusted. Default: the system's
	// certificate authorities.
	// +optional
	TLS *HypervisorTLS `json:"tls,omitempty"`

	// allowedNamespaces may have machines made here, each entry within its own limits; of
	// several entries for a namespace the first counts. Default: all namespaces, without
	// limits. Machines that are there are left alone.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	AllowedNamespaces []NamespaceAccess `json:"allowedNamespaces,omitempty"`

	// nodes that may carry machines. Default: every online node of the cluster.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.all(n, n.matches('^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$'))",message="nodes must be names of nodes as the hypervisor shows them, e.g. pve-node-1"
	Nodes []string `json:"nodes,omitempty"`

	// defaultStorage holds the disks of full clones unless a template says otherwise.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]$')",message="defaultStorage must be the id of a storage: a letter first, then letters, digits, '.', '_' and '-'"
	DefaultStorage string `json:"defaultStorage,omitempty"`

	// isoStorage holds the cloud-init ISOs; its content types must include iso.
	// Default: the first active storage of the node that takes iso.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z][A-Za-z0-9._-]*[A-Za-z0-9]$')",message="isoStorage must be the id of a storage: a letter first, then letters, digits, '.', '_' and '-'"
	ISOStorage string `json:"isoStorage,omitempty"`

	// defaultNetwork is the bridge that machines are attached to unless a template
	// says otherwise. Default: the bridge of the template's own network device.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_.-]+$')",message="defaultNetwork must be the name of a bridge such as vmbr0"
	DefaultNetwork string `json:"defaultNetwork,omitempty"`

	// resourcePool is the hypervisor's pool that machines are created in (Proxmox:
	// `pool`), so that permissions can be given on it.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+){0,2}$')",message="resourcePool must be the id of a pool such as ci or ci/linux"
	ResourcePool string `json:"resourcePool,omitempty"`

	// vmIdRange bounds the ids given to machines, both ends included.
	// +optional
	// +kubebuilder:default={min: 100000, max: 199999}
	VMIDRange *VMIDRange `json:"vmIdRange,omitempty"`

	// limits bound the load put on the hypervisor.
	// +optional
	// +kubebuilder:default={}
	Limits *HypervisorLimits `json:"limits,omitempty"`

	// dns settings for machines on this cluster.
	// +optional
	DNS *HypervisorDNS `json:"dns,omitempty"`

	// network checks for machines on this cluster.
	// +optional
	Network *HypervisorNetwork `json:"network,omitempty"`

	// tags describe the cluster. They are put on its machines as tags `key-value`, so
	// both hold only what a tag may: letters, digits, '_', '-', '+' and '.'.
	// +optional
	// +kubebuilder:validation:MaxProperties=10
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 63 && size(self[k]) <= 63)",message="tags must have keys and values of at most 63 characters"
	// +kubebuilder:validation:XValidation:rule=`self.all(k, k.matches(r'^\w[\w.+-]*$'))`,message="tags must have keys of letters, digits, '_', '-', '+' and '.' only, a letter, digit or '_' first"
	// +kubebuilder:validation:XValidation:rule=`self.all(k, self[k].matches(r'^[\w.+-]+$'))`,message="tags must have values of letters, digits, '_', '-', '+' and '.' only"
	Tags map[string]string `json:"tags,omitempty"`
}

// KubeVirtCluster is one namespace of a Kubernetes cluster with KubeVirt.
type KubeVirtCluster struct {
	// namespace that machines and their Secrets are made in, on the cluster that
	// kubeconfigSecretRef leads to. Keep people out of it: whoever reads its Secrets reads
	// the credentials of machines that are about to start.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Label().validate(self).hasValue()",message="kubevirt.namespace must be the name of a namespace such as machines"
	Namespace string `json:"namespace"`
	// kubeconfigSecretRef picks a kubeconfig that holds all it needs: no files, and no
	// programs to authenticate with. Default: the operator's own cluster.
	// +optional
	KubeconfigSecretRef *SecretKeySelector `json:"kubeconfigSecretRef,omitempty"`
	// storageClassName of the disks that are made from data sources and volumes. Default:
	// the cluster's default storage class.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || !format.dns1123Subdomain().validate(self).hasValue()",message="kubevirt.storageClassName must be the name of a storage class"
	StorageClassName string `json:"storageClassName,omitempty"`
	// network is the NetworkAttachmentDefinition, as name or namespace/name, that machines
	// are attached to unless a template says otherwise. Default: the pod network.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^([a-z0-9]([a-z0-9-]*[a-z0-9])?/)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')",message="kubevirt.network must be the name of a NetworkAttachmentDefinition such as vlan20 or networks/vlan20"
	Network string `json:"network,omitempty"`
	// nodeSelector picks by labels the nodes that may carry machines. Default: all that
	// KubeVirt uses.
	// +optional
	// +kubebuilder:validation:MaxProperties=8
	// +kubebuilder:validation:XValidation:rule="self.all(k, !format.qualifiedName().validate(k).hasValue())",message="kubevirt.nodeSelector must have valid Kubernetes keys such as example.com/ci"
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(self[k]) <= 63)",message="kubevirt.nodeSelector must have values of at most 63 characters"
	// +kubebuilder:validation:XValidation:rule=`self.all(k, self[k].matches(r'^[\w.-]*$'))`,message="kubevirt.nodeSelector must have values of letters, digits, '_', '-' and '.' only"
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
}

// HypervisorCredentials are the ways to authenticate. Exactly one of token and
// password is used; a client certificate may stand beside either, or alone where a
// proxy before the API authenticates by it.
// +kubebuilder:validation:XValidation:rule="has(self.tokenId) == has(self.tokenSecret)",message="tokenId and tokenSecret belong together: set both or neither"
// +kubebuilder:validation:XValidation:rule="has(self.username) == has(self.password)",message="username and password belong together: set both or neither"
// +kubebuilder:validation:XValidation:rule="has(self.clientCert) == has(self.clientKey)",message="clientCert and clientKey belong together: set both or neither"
// +kubebuilder:validation:XValidation:rule="!(has(self.tokenId) && has(self.username))",message="choose one of API token (tokenId, tokenSecret) and username with password"
// +kubebuilder:validation:XValidation:rule="has(self.tokenId) || has(self.username) || has(self.clientCert)",message="choose a way to authenticate: an API token (tokenId, tokenSecret), a username with password, or a client certificate (clientCert, clientKey)"
type HypervisorCredentials struct {
	// tokenId is the API token's full name, e.g. hyperfleet@pve!operator.
	// +optional
	TokenID *SecretValueSource `json:"tokenId,omitempty"`
	// tokenSecret is the API token's UUID.
	// +optional
	TokenSecret *SecretValueSource `json:"tokenSecret,omitempty"`
	// username with its realm, e.g. hyperfleet@pve.
	// +optional
	Username *SecretValueSource `json:"username,omitempty"`
	// password of the user.
	// +optional
	Password *SecretValueSource `json:"password,omitempty"`
	// clientCert is a PEM certificate shown to the endpoint.
	// +optional
	ClientCert *SecretValueSource `json:"clientCert,omitempty"`
	// clientKey is the PEM private key of clientCert.
	// +optional
	ClientKey *SecretValueSource `json:"clientKey,omitempty"`
}

// HypervisorTLS says which server certificate is trusted.
// +kubebuilder:validation:XValidation:rule="[has(self.caBundle), has(self.fingerprint), has(self.insecureSkipVerify) && self.insecureSkipVerify].filter(x, x).size() <= 1",message="choose at most one of caBundle, fingerprint and insecureSkipVerify"
type HypervisorTLS struct {
	// caBundle is a PEM bundle of certificate authorities, in base64.
	// +optional
	// +kubebuilder:validation:MaxLength=262144
	CABundle []byte `json:"caBundle,omitempty"`
	// fingerprint pins the server's own certificate by its SHA-256, as Proxmox shows
	// it: 32 pairs of hexadecimal digits with colons between.
	// +optional
	// +kubebuilder:validation:MaxLength=95
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9A-Fa-f]{2}:){31}[0-9A-Fa-f]{2}$')",message="fingerprint must be a SHA-256 as Proxmox shows it: 32 pairs of hexadecimal digits with colons between"
	Fingerprint string `json:"fingerprint,omitempty"`
	// insecureSkipVerify trusts any certificate. The cluster then carries the
	// condition InsecureTLS=True.
	// +optional
	InsecureSkipVerify bool `json:"insecureSkipVerify,omitempty"`
}

// VMIDRange is an inclusive range of machine ids.
// +kubebuilder:validation:XValidation:rule="self.min <= self.max",message="vmIdRange.min must not be above vmIdRange.max"
type VMIDRange struct {
	// min is the lowest id. Proxmox reserves ids below 100.
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=999999999
	Min int32 `json:"min"`
	// max is the highest id.
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=999999999
	Max int32 `json:"max"`
}

// HypervisorLimits bound what is asked of the hypervisor at once.
type HypervisorLimits struct {
	// clonesPerStorage is how many clones may run on one storage at a time.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	ClonesPerStorage int32 `json:"clonesPerStorage,omitempty"`
	// callsPerNode is how many API calls may be under way to one node at a time. A
	// Proxmox node runs three API workers.
	// +optional
	// +kubebuilder:default=4
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	CallsPerNode int32 `json:"callsPerNode,omitempty"`
}

// HypervisorDNS holds the DNS settings of a cluster's machines.
// +kubebuilder:validation:XValidation:rule="!has(self.registerVMs) || !self.registerVMs || (has(self.dnsProvider) && has(self.domain))",message="dns.registerVMs needs dns.domain and dns.dnsProvider: the zone to write to and the service that holds it"
// +kubebuilder:validation:XValidation:rule="!has(self.dnsProvider) || !has(self.dnsProvider.zones) || !has(self.domain) || size(self.domain) == 0 || self.dnsProvider.zones.exists(z, self.domain.lowerAscii() == z.lowerAscii() || self.domain.lowerAscii().endsWith('.' + z.lowerAscii()))",message="dns.dnsProvider.zones must hold the zone of dns.domain: dns.domain itself or a domain above it"
type HypervisorDNS struct {
	// domain completes a machine's host name to its FQDN.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?([.][A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$')",message="dns.domain must be a DNS name such as ci.example.com"
	Domain string `json:"domain,omitempty"`
	// search domains for machines.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	Search []string `json:"search,omitempty"`
	// servers that machines resolve names with.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(s, isIP(s))",message="dns.servers must be IP addresses"
	Servers []string `json:"servers,omitempty"`
	// registerVMs registers each machine's address in DNS through dnsProvider.
	// +optional
	RegisterVMs bool `json:"registerVMs,omitempty"`
	// dnsProvider is the DNS service that registerVMs writes to.
	// +optional
	DNSProvider *DNSProvider `json:"dnsProvider,omitempty"`
	// validation of DNS for machines.
	// +optional
	Validation *DNSValidation `json:"validation,omitempty"`
}

// DNSProvider names a DNS service, its credentials, and the zones that may be written to.
// +kubebuilder:validation:XValidation:rule="(self.type == 'rfc2136') == has(self.server)",message="dnsProvider.server belongs to type rfc2136, and to no other: the server that takes the updates, such as 192.0.2.53:53"
// +kubebuilder:validation:XValidation:rule="self.type != 'rfc2136' || (has(self.credentials) && 'keyName' in self.credentials && 'key' in self.credentials && self.credentials.all(k, k in ['keyName', 'key', 'keyAlgorithm']))",message="rfc2136 needs the credentials keyName and key (a TSIG key), and takes keyAlgorithm beside them"
// +kubebuilder:validation:XValidation:rule="self.type != 'cloudflare' || (has(self.credentials) && 'apiToken' in self.credentials && self.credentials.all(k, k in ['apiToken', 'zoneToken']))",message="cloudflare needs the credential apiToken, and takes zoneToken beside it"
// +kubebuilder:validation:XValidation:rule="self.type != 'route53' || !has(self.credentials) || size(self.credentials) == 0 || ('accessKeyId' in self.credentials && 'secretAccessKey' in self.credentials && self.credentials.all(k, k in ['accessKeyId', 'secretAccessKey', 'sessionToken', 'region', 'hostedZoneId']))",message="route53 needs the credentials accessKeyId and secretAccessKey, or none at all where the operator's pod has a role; it takes sessionToken, region and hostedZoneId beside them"
type DNSProvider struct {
	// type of the service.
	// +kubebuilder:validation:Enum=route53;cloudflare;rfc2136
	Type string `json:"type"`
	// credentials by their name in the service's own documentation, e.g. accessKeyId
	// and secretAccessKey for route53.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Credentials map[string]SecretValueSource `json:"credentials,omitempty"`
	// server that takes the updates of type rfc2136, as host:port. It has to allow zone
	// transfers (AXFR) to the key as well: they show which records are there.
	// +optional
	// +kubebuilder:validation:MaxLength=260
	// +kubebuilder:validation:XValidation:rule="self.matches('^([A-Za-z0-9.-]+|\\\\[[0-9A-Fa-f:.]+\\\\]):[0-9]{1,5}$')",message="dnsProvider.server must be host:port such as 192.0.2.53:53 or [2001:db8::53]:53"
	Server string `json:"server,omitempty"`
	// zones that may be written to, forward and reverse, e.g. ci.example.com and
	// 2.0.192.in-addr.arpa. A record goes to the longest one that its name is in; an
	// address in no reverse zone gets no PTR record. Default: dns.domain.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.all(z, z.matches('^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?([.][A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$'))",message="dnsProvider.zones must be DNS names without a dot at the end, such as ci.example.com or 2.0.192.in-addr.arpa"
	Zones []string `json:"zones,omitempty"`
	// ttlSeconds of the records.
	// +optional
	// +kubebuilder:default=300
	// +kubebuilder:validation:Minimum=60
	// +kubebuilder:validation:Maximum=86400
	TTLSeconds int32 `json:"ttlSeconds,omitempty"`
}

// DNSValidation says how a machine's DNS records are checked.
type DNSValidation struct {
	// enabled switches the validation on.
	// +optional
	Enabled bool `json:"enabled,omitempty"`
	// validateOnReady checks once when a machine becomes Ready.
	// +optional
	ValidateOnReady bool `json:"validateOnReady,omitempty"`
	// validateInterval repeats the check.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) > duration('0s')",message="validateInterval must be a time above zero such as 90s, 15m or 1h30m"
	ValidateInterval *metav1.Duration `json:"validateInterval,omitempty"`
	// validateReverse checks the PTR record as well.
	// +optional
	ValidateReverse bool `json:"validateReverse,omitempty"`
	// timeoutSeconds bounds one look-up.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=300
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
	// expectedDomain is the suffix that names must have. Default: dns.domain.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ExpectedDomain string `json:"expectedDomain,omitempty"`
}

// HypervisorNetwork holds network checks of a cluster's machines.
type HypervisorNetwork struct {
	// validation of a machine's reachability.
	// +optional
	Validation *NetworkValidation `json:"validation,omitempty"`
}

// NetworkValidation says how a machine's reachability is checked.
type NetworkValidation struct {
	// enabled switches the validation on.
	// +optional
	Enabled bool `json:"enabled,omitempty"`
	// pingTest sends an ICMP echo.
	// +optional
	PingTest bool `json:"pingTest,omitempty"`
	// sshTest opens a TCP connection to port 22 and reads the banner.
	// +optional
	SSHTest bool `json:"sshTest,omitempty"`
	// validateInterval repeats the tests. Default: dns.validation.validateInterval; where
	// neither is set, a machine is tested until it has passed once.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) > duration('0s')",message="validateInterval must be a time above zero such as 90s, 15m or 1h30m"
	ValidateInterval *metav1.Duration `json:"validateInterval,omitempty"`
	// timeoutSeconds bounds one test.
	// +optional
	// +kubebuilder:default=30
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=300
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
}

// HypervisorClusterStatus is what was last seen of the hypervisor.
type HypervisorClusterStatus struct {
	// observedGeneration is the generation of the spec that the status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions of the cluster.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// version of the hypervisor's software.
	// +optional
	Version string `json:"version,omitempty"`
	// connectedNodes is how many usable nodes are online.
	// +optional
	ConnectedNodes int32 `json:"connectedNodes,omitempty"`
	// availableResources is what is free on the usable nodes together.
	// +optional
	AvailableResources *ResourceAmounts `json:"availableResources,omitempty"`
	// nodes that may carry machines, with what is free on each.
	// +optional
	// +listType=map
	// +listMapKey=name
	Nodes []HypervisorNodeStatus `json:"nodes,omitempty"`
	// machines is how many machines of this operator are on the cluster.
	// +optional
	Machines int32 `json:"machines,omitempty"`
}

// ResourceAmounts are amounts of processor, memory and disk.
type ResourceAmounts struct {
	// cpu in cores.
	CPU int64 `json:"cpu"`
	// memory in bytes.
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^-?[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$`
	Memory resource.Quantity `json:"memory"`
	// storage in bytes.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^-?[0-9]{1,15}([.][0-9]{1,9})?([KMGTPE]i|[mkMGTPE])?$`
	Storage resource.Quantity `json:"storage,omitempty"`
}

// HypervisorNodeStatus is one node as last seen.
type HypervisorNodeStatus struct {
	// name of the node.
	Name string `json:"name"`
	// online says whether the node answers.
	Online bool `json:"online"`
	// available is what is free on the node.
	// +optional
	Available *ResourceAmounts `json:"available,omitempty"`
	// capacity is what the node has.
	// +optional
	Capacity *ResourceAmounts `json:"capacity,omitempty"`
	// conditions of the node: Ready, False with the reason while no machines are placed on it
	// (Offline), or not all that could be (SetAside, after failures).
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// HypervisorCluster is the connection to one hypervisor environment.
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

	// spec is the connection wanted.
	Spec HypervisorClusterSpec `json:"spec"`
	// status is what was last seen.
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

// StatusConditions gives the conditions to whoever reports on the object.
func (c *HypervisorCluster) StatusConditions() *[]metav1.Condition { return &c.Status.Conditions }

// SetObservedGeneration notes the generation that the status speaks of.
func (c *HypervisorCluster) SetObservedGeneration(generation int64) {
	c.Status.ObservedGeneration = generation
}
