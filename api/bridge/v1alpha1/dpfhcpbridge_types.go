// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Finalizer prevents the deletion of a bridge until its hosted cluster is deleted.
const Finalizer = "dpf.hcp.bridge.com/dpfhcpbridge-finalizer"

// Keys of the Secrets that a bridge names.
const (
	// SSHKeySecretKey is the key of one or more SSH public keys, one per line, in the format of
	// authorized_keys.
	SSHKeySecretKey = "ssh-publickey" // #nosec G101 -- the name of a key, not a credential
	// PullSecretKey is the key of a Docker configuration with credentials for the registry.
	PullSecretKey = ".dockerconfigjson" // #nosec G101 -- the name of a key, not a credential
)

// Condition types.
const (
	ConditionReady                = "Ready"
	ConditionHostedClusterCreated = "HostedClusterCreated"
	ConditionNodePoolReady        = "NodePoolReady"
	ConditionDPUClusterValid      = "DPUClusterValid"
	ConditionServiceExposureReady = "ServiceExposureReady"
	// The following conditions are about other objects that the bridge needs, so that DPUClusterValid is
	// only about the DPUCluster.
	ConditionSecretsValid      = "SecretsValid"
	ConditionStorageClassValid = "StorageClassValid"
	ConditionReleaseImageValid = "ReleaseImageValid"
	ConditionPlatformReady     = "PlatformReady"
	// ConditionIgnitionConfigured is only reported if spec.dpuIgnition is set.
	ConditionIgnitionConfigured = "IgnitionConfigured"
	// The following conditions are copied from the HostedCluster, as HyperShift reports them.
	ConditionHostedClusterAvailable          = "HostedClusterAvailable"
	ConditionHostedClusterProgressing        = "HostedClusterProgressing"
	ConditionHostedClusterDegraded           = "HostedClusterDegraded"
	ConditionHostedClusterValidConfiguration = "HostedClusterValidConfiguration"
	ConditionHostedClusterSupported          = "HostedClusterSupported"
	ConditionHostedClusterValidReleaseImage  = "HostedClusterValidReleaseImage"
)

// Reasons of conditions.
const (
	// Reasons of Ready.
	ReasonClusterReady             = "ClusterReady"
	ReasonWaitingForControlPlane   = "WaitingForControlPlane"
	ReasonWaitingForInfrastructure = "WaitingForInfrastructure"
	ReasonAPIServerUnreachable     = "APIServerUnreachable"
	ReasonValidationFailed         = "ValidationFailed"
	// Reasons of HostedClusterCreated.
	ReasonCreated        = "Created"
	ReasonCreationFailed = "CreationFailed"
	ReasonNotCreated     = "NotCreated"
	ReasonDeleted        = "Deleted"
	// Reasons of NodePoolReady.
	ReasonNodesReady             = "NodesReady"
	ReasonWaitingForNodes        = "WaitingForNodes"
	ReasonNodePoolCreationFailed = "NodePoolCreationFailed"
	ReasonNodesUnhealthy         = "NodesUnhealthy"
	// Reasons of DPUClusterValid. Valid is also the reason of the other validations that succeed, and
	// NotFound of the validations whose object does not exist.
	ReasonValid                 = "Valid"
	ReasonNotFound              = "NotFound"
	ReasonNotReady              = "NotReady"
	ReasonInsufficientResources = "InsufficientResources"
	// ReasonInUse means that the DPUCluster belongs to another bridge or has another control plane.
	ReasonInUse = "InUse"
	// Reasons of ServiceExposureReady.
	ReasonLoadBalancerReady     = "LoadBalancerReady"
	ReasonNodePortReady         = "NodePortReady"
	ReasonLoadBalancerPending   = "LoadBalancerPending"
	ReasonNodePortPending       = "NodePortPending"
	ReasonVIPConflict           = "VIPConflict"
	ReasonServiceCreationFailed = "ServiceCreationFailed"
	// ReasonVIPNotInPool means that no IPAddressPool has the addresses and serves the control plane.
	ReasonVIPNotInPool = "VIPNotInPool"
	// Reasons of SecretsValid: a key is missing, or its value is not valid.
	ReasonKeyMissing  = "KeyMissing"
	ReasonInvalidData = "InvalidData"
	// Reason of StorageClassValid: the StorageClass does not provision volumes dynamically.
	ReasonNotDynamic = "NotDynamic"
	// Reasons of ReleaseImageValid: the registry does not have the image, the pull secret may not read
	// it, the registry is unreachable, or HyperShift does not support the version.
	ReasonImageNotFound       = "ImageNotFound"
	ReasonImageUnauthorized   = "ImageUnauthorized"
	ReasonRegistryUnreachable = "RegistryUnreachable"
	ReasonVersionNotSupported = "VersionNotSupported"
	// Reasons of IgnitionConfigured. NotFound is also used if the DPUFlavor or the ConfigMap does not
	// exist.
	ReasonIgnitionGenerated   = "IgnitionGenerated"
	ReasonWaitingForIgnition  = "WaitingForIgnition"
	ReasonIgnitionUnreachable = "IgnitionUnreachable"
	ReasonIgnitionInvalid     = "IgnitionInvalid"
	// Reasons of PlatformReady.
	ReasonInstalled              = "Installed"
	ReasonHyperShiftNotInstalled = "HyperShiftNotInstalled"
	ReasonMetalLBNotInstalled    = "MetalLBNotInstalled"
	ReasonDPFNotInstalled        = "DPFNotInstalled"
)

// Event reasons.
const (
	// EventMismatchedAvailability warns that the two availability policies differ.
	EventMismatchedAvailability = "MismatchedAvailability"
)

// DPFHCPBridge turns a DPUCluster into a hosted OpenShift control plane. It creates a HyperShift
// HostedCluster and NodePool and publishes the kubeconfig to the DPUCluster.
//
// The HostedCluster and the NodePool have the name and the namespace of the bridge.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:resource:scope=Namespaced,shortName=dpfhcp,categories={dpf,hcp}
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`,description="Current phase"
// +kubebuilder:printcolumn:name="DPUCluster",type=string,JSONPath=`.spec.dpuClusterRef.name`,description="The DPUCluster that the bridge serves"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether the hosted cluster is ready"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,description="Time since creation"
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 54 && !self.metadata.name.contains('.')",message="name must have at most 54 characters and no dot, because other objects are named after it"
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) + size(self.spec.baseDomain) <= 245",message="name and baseDomain together must have at most 245 characters, because the DNS names of the API and the ingress are made of both"
type DPFHCPBridge struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired hosted cluster.
	// +required
	Spec DPFHCPBridgeSpec `json:"spec"`
	// status is the observed state of the hosted cluster. Until the first reconcile, Ready is Unknown.
	//
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "NotReconciled", message: "the operator has not reconciled the bridge yet", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status DPFHCPBridgeStatus `json:"status,omitempty"`
}

// DPFHCPBridgeList is a list of DPFHCPBridges.
//
// +kubebuilder:object:root=true
type DPFHCPBridgeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DPFHCPBridge `json:"items"`
}

// DPFHCPBridgeSpec is the desired hosted cluster. Fields that HyperShift cannot change in an existing
// HostedCluster are immutable.
//
// +kubebuilder:validation:XValidation:rule="self.exposeThroughLoadBalancer == false || size(self.metalLBVirtualIP) != 0",message="metalLBVirtualIP is required when exposeThroughLoadBalancer is true"
// +kubebuilder:validation:XValidation:rule="self.exposeThroughLoadBalancer == true || size(self.metalLBVirtualIP) == 0",message="metalLBVirtualIP must be empty when exposeThroughLoadBalancer is false"
// +kubebuilder:validation:XValidation:rule="(has(self.controlPlane) && has(self.controlPlane.disabledCapabilities) ? self.controlPlane.disabledCapabilities : []) == (has(oldSelf.controlPlane) && has(oldSelf.controlPlane.disabledCapabilities) ? oldSelf.controlPlane.disabledCapabilities : [])",message="disabledCapabilities is immutable, because OpenShift cannot change the capabilities of an existing cluster"
type DPFHCPBridgeSpec struct {
	// dpuClusterRef names the DPUCluster. It may be in any namespace. A DPUCluster serves one bridge at a
	// time.
	//
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="dpuClusterRef is immutable"
	DPUClusterRef ObjectReference `json:"dpuClusterRef"`

	// baseDomain is the DNS domain of the hosted cluster. Its API server is api.NAME.BASEDOMAIN, and its
	// ingress is *.apps.NAME.BASEDOMAIN.
	//
	// +required
	// +kubebuilder:validation:MinLength=4
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^([a-z0-9]+(-[a-z0-9]+)*\.)+[a-z]{2,}$')`,message="baseDomain must be a DNS domain in lower case with at least one dot, such as clusters.example.com"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="baseDomain is immutable"
	BaseDomain string `json:"baseDomain"`

	// ocpReleaseImage is the OpenShift release image, by tag or digest. A change upgrades the cluster.
	//
	// +required
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^[a-z0-9][a-zA-Z0-9._\-:/@]*$')`,message="ocpReleaseImage must be the name of an image such as quay.io/openshift-release-dev/ocp-release:4.20.0-x86_64"
	// +kubebuilder:validation:MinLength=10
	// +kubebuilder:validation:MaxLength=512
	OCPReleaseImage string `json:"ocpReleaseImage"`

	// sshKeySecretRef names a Secret in the same namespace. Its key ssh-publickey holds the SSH public
	// keys that may log in to nodes.
	//
	// +required
	SSHKeySecretRef LocalObjectReference `json:"sshKeySecretRef"`

	// pullSecretRef names a Secret in the same namespace. Its key .dockerconfigjson holds the credentials
	// for the registries of OpenShift's images.
	//
	// +required
	PullSecretRef LocalObjectReference `json:"pullSecretRef"`

	// etcdStorageClass is the StorageClass of etcd's volumes. It must provision volumes dynamically.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="etcdStorageClass is immutable"
	EtcdStorageClass string `json:"etcdStorageClass"`

	// controlPlaneAvailabilityPolicy is the number of replicas of the control plane and of etcd: three
	// with HighlyAvailable, and one with SingleReplica.
	//
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="controlPlaneAvailabilityPolicy is immutable, because HyperShift cannot change it for an existing cluster"
	ControlPlaneAvailabilityPolicy AvailabilityPolicy `json:"controlPlaneAvailabilityPolicy"`

	// infrastructureAvailabilityPolicy is the availability of the ingress and other infrastructure of the
	// hosted cluster.
	//
	// +required
	InfrastructureAvailabilityPolicy AvailabilityPolicy `json:"infrastructureAvailabilityPolicy"`

	// exposeThroughLoadBalancer exposes the API server at metalLBVirtualIP through MetalLB. If it is
	// false, the API server is exposed on node ports of the management cluster.
	//
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="exposeThroughLoadBalancer is immutable, because HyperShift cannot change how an existing cluster is published"
	ExposeThroughLoadBalancer bool `json:"exposeThroughLoadBalancer"`

	// metalLBVirtualIP is the address of the API server if it is exposed through a load balancer, and
	// empty otherwise. It is an IPv4 address, an IPv6 address, or one of each with a comma between them.
	// The Services of the management cluster must support these address families.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=55
	// +kubebuilder:validation:XValidation:rule="self == '' || (self.split(',').all(a, isIP(a) && ip.isCanonical(a)) && (self.split(',').size() == 1 || self.split(',').size() == 2 && ip(self.split(',')[0]).family() != ip(self.split(',')[1]).family()))",message="metalLBVirtualIP must be an IPv4 or IPv6 address in its shortest form, or one of each with a comma between them, such as 192.168.1.100,fd00::100"
	// +kubebuilder:default=""
	MetalLBVirtualIP string `json:"metalLBVirtualIP,omitempty"`

	// networking defines the networks of the hosted cluster.
	//
	// +optional
	// +kubebuilder:default={}
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="networking is immutable, because HyperShift cannot change the networks of an existing cluster"
	Networking Networking `json:"networking,omitempty,omitzero"`

	// controlPlane defines where the control plane's pods run, and which capabilities are disabled.
	//
	// +optional
	ControlPlane *ControlPlane `json:"controlPlane,omitempty"`

	// dpuIgnition installs DPUs as workers of the hosted cluster. The operator creates and updates the
	// template that DPF boots the DPUs with. If dpuIgnition is not set, you have to create the template.
	//
	// +optional
	DPUIgnition *DPUIgnition `json:"dpuIgnition,omitempty"`

	// provisioningTimeout is the time within which the cluster must become ready, after its creation and
	// after each change of the spec. If the cluster takes longer, the phase is Failed until the cluster
	// is ready.
	//
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) >= duration('1m')",message="provisioningTimeout must be a time of at least one minute such as 30m or 1h30m"
	ProvisioningTimeout metav1.Duration `json:"provisioningTimeout,omitempty,omitzero"`

	// clusterType is a category that you choose, for example dpf-production. The created objects have it
	// as a label.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="clusterType must be lower-case letters, digits and '-', with a letter or digit first and last, such as dpf-production"
	ClusterType string `json:"clusterType"`
}

// DPUIgnition defines what DPUs are installed with.
type DPUIgnition struct {
	// flavorName is the name of the DPUFlavor in the DPUCluster's namespace.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	FlavorName string `json:"flavorName"`

	// machineOSURL is the image of the DPUs' operating system: the image of the release with BlueField's
	// drivers. Change it together with ocpReleaseImage.
	//
	// +required
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^[a-z0-9][a-zA-Z0-9._\-:/@]*$')`,message="machineOSURL must be the name of an image such as quay.io/example/bluefield-os:4.20.0"
	// +kubebuilder:validation:MinLength=10
	// +kubebuilder:validation:MaxLength=512
	MachineOSURL string `json:"machineOSURL"`

	// configMapRef names a ConfigMap in the same namespace with your own ignitions (spec 3), which are
	// merged into the generated ignitions. Its key target.ign is for the installed DPU, and live.ign is
	// for the live system that installs the DPU. A file or a unit replaces a generated one of the same
	// name.
	//
	// +optional
	ConfigMapRef *LocalObjectReference `json:"configMapRef,omitempty"`
}

// ObjectReference names an object in a namespace.
type ObjectReference struct {
	// name is the name of the object.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// namespace is the namespace of the object.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
}

// LocalObjectReference names an object in the same namespace.
type LocalObjectReference struct {
	// name is the name of the object.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// AvailabilityPolicy defines the number of replicas.
//
// +kubebuilder:validation:Enum=HighlyAvailable;SingleReplica
type AvailabilityPolicy string

const (
	// HighlyAvailable runs three replicas.
	HighlyAvailable AvailabilityPolicy = "HighlyAvailable"
	// SingleReplica runs one replica.
	SingleReplica AvailabilityPolicy = "SingleReplica"
)

// DPFHCPBridgePhase summarizes the conditions.
//
// +kubebuilder:validation:Enum=Pending;Provisioning;Ready;Failed;Deleting
type DPFHCPBridgePhase string

const (
	// PhasePending means that an object that the bridge needs does not exist or is not ready yet.
	PhasePending DPFHCPBridgePhase = "Pending"
	// PhaseProvisioning means that the hosted cluster is being created or upgraded.
	PhaseProvisioning DPFHCPBridgePhase = "Provisioning"
	// PhaseReady means that the hosted cluster can be used.
	PhaseReady DPFHCPBridgePhase = "Ready"
	// PhaseFailed means that a person has to act. The message says what to do.
	PhaseFailed DPFHCPBridgePhase = "Failed"
	// PhaseDeleting means that the created objects are being deleted.
	PhaseDeleting DPFHCPBridgePhase = "Deleting"
)

// DPFHCPBridgeStatus is the observed state of the hosted cluster.
type DPFHCPBridgeStatus struct {
	// phase summarizes the conditions. It is computed on every reconcile.
	//
	// +optional
	Phase DPFHCPBridgePhase `json:"phase,omitempty"`

	// conditions are the conditions of the bridge.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	// +patchMergeKey=type
	// +patchStrategy=merge
	Conditions []metav1.Condition `json:"conditions,omitempty" patchMergeKey:"type" patchStrategy:"merge"`

	// hostedClusterRef names the HostedCluster that the bridge has created.
	//
	// +optional
	HostedClusterRef *ObjectReference `json:"hostedClusterRef,omitempty"`

	// nodePoolRef names the NodePool that the bridge has created.
	//
	// +optional
	NodePoolRef *ObjectReference `json:"nodePoolRef,omitempty"`

	// apiEndpoint is the URL of the API server: https://api.NAME.BASEDOMAIN:6443, or the address and the
	// port of a node.
	//
	// +optional
	APIEndpoint string `json:"apiEndpoint,omitempty"`

	// ingressEndpoint is the wildcard DNS name of the ingress: *.apps.NAME.BASEDOMAIN.
	//
	// +optional
	IngressEndpoint string `json:"ingressEndpoint,omitempty"`

	// kubeconfigSecretRef names the Secret with the administrator's kubeconfig.
	//
	// +optional
	KubeconfigSecretRef *LocalObjectReference `json:"kubeconfigSecretRef,omitempty"`

	// ignitionConfigMapRef names the ConfigMap with the template that DPUs boot with, in the DPUCluster's
	// namespace.
	//
	// +optional
	IgnitionConfigMapRef *LocalObjectReference `json:"ignitionConfigMapRef,omitempty"`

	// provisioningSince is the start of provisioningTimeout. It is empty while the cluster is ready, and
	// before the cluster is created.
	//
	// +optional
	ProvisioningSince *metav1.Time `json:"provisioningSince,omitempty"`

	// observedGeneration is the generation of the spec that this status describes.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// message says what the bridge waits for, or what is wrong and how to fix it.
	//
	// +optional
	Message string `json:"message,omitempty"`
}

// StatusConditions returns a pointer to the conditions, for kit/step.
func (b *DPFHCPBridge) StatusConditions() *[]metav1.Condition { return &b.Status.Conditions }

// SetObservedGeneration records the generation that the status describes.
func (b *DPFHCPBridge) SetObservedGeneration(generation int64) {
	b.Status.ObservedGeneration = generation
}
