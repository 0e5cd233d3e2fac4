// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Finalizer keeps a bridge until its hosted cluster is really gone.
const Finalizer = "dpf.hcp.bridge.com/dpfhcpbridge-finalizer"

// Keys of the Secrets that a bridge names.
const (
	// SSHKeySecretKey holds one or more public keys, a line each, as authorized_keys.
	SSHKeySecretKey = "ssh-publickey" // #nosec G101 -- a name
	// PullSecretKey holds a Docker configuration with an auth for the registry.
	PullSecretKey = ".dockerconfigjson" // #nosec G101 -- a name
)

// Condition types.
const (
	ConditionReady                = "Ready"
	ConditionHostedClusterCreated = "HostedClusterCreated"
	ConditionNodePoolReady        = "NodePoolReady"
	ConditionDPUClusterValid      = "DPUClusterValid"
	ConditionServiceExposureReady = "ServiceExposureReady"
	// The conditions below stand beside those of the document, so that DPUClusterValid
	// speaks of the DPUCluster alone.
	ConditionSecretsValid      = "SecretsValid"
	ConditionStorageClassValid = "StorageClassValid"
	ConditionReleaseImageValid = "ReleaseImageValid"
	ConditionPlatformReady     = "PlatformReady"
	// ConditionIgnitionConfigured is there with spec.dpuIgnition.
	ConditionIgnitionConfigured = "IgnitionConfigured"
	// The conditions below are the HostedCluster's own, as HyperShift reports them.
	ConditionHostedClusterAvailable          = "HostedClusterAvailable"
	ConditionHostedClusterProgressing        = "HostedClusterProgressing"
	ConditionHostedClusterDegraded           = "HostedClusterDegraded"
	ConditionHostedClusterValidConfiguration = "HostedClusterValidConfiguration"
	ConditionHostedClusterSupported          = "HostedClusterSupported"
	ConditionHostedClusterValidReleaseImage  = "HostedClusterValidReleaseImage"
)

// Reasons of conditions.
const (
	// Ready.
	ReasonClusterReady             = "ClusterReady"
	ReasonWaitingForControlPlane   = "WaitingForControlPlane"
	ReasonWaitingForInfrastructure = "WaitingForInfrastructure"
	ReasonAPIServerUnreachable     = "APIServerUnreachable"
	ReasonValidationFailed         = "ValidationFailed"
	// HostedClusterCreated.
	ReasonCreated        = "Created"
	ReasonCreationFailed = "CreationFailed"
	ReasonNotCreated     = "NotCreated"
	ReasonDeleted        = "Deleted"
	// NodePoolReady.
	ReasonNodesReady             = "NodesReady"
	ReasonWaitingForNodes        = "WaitingForNodes"
	ReasonNodePoolCreationFailed = "NodePoolCreationFailed"
	ReasonNodesUnhealthy         = "NodesUnhealthy"
	// DPUClusterValid. Valid is also the reason of the other validations that succeed,
	// NotFound of those whose object is missing.
	ReasonValid                 = "Valid"
	ReasonNotFound              = "NotFound"
	ReasonNotReady              = "NotReady"
	ReasonInsufficientResources = "InsufficientResources"
	// ReasonInUse: another bridge has the DPUCluster.
	ReasonInUse = "InUse"
	// ServiceExposureReady.
	ReasonLoadBalancerReady     = "LoadBalancerReady"
	ReasonNodePortReady         = "NodePortReady"
	ReasonLoadBalancerPending   = "LoadBalancerPending"
	ReasonNodePortPending       = "NodePortPending"
	ReasonVIPConflict           = "VIPConflict"
	ReasonServiceCreationFailed = "ServiceCreationFailed"
	// ReasonVIPNotInPool: no IPAddressPool has the address.
	ReasonVIPNotInPool = "VIPNotInPool"
	// SecretsValid: a key is missing, or what it holds can't be read.
	ReasonKeyMissing = "KeyMissing"
	ReasonUnreadable = "Unreadable"
	// StorageClassValid: the class makes no volumes by itself.
	ReasonNotDynamic = "NotDynamic"
	// ReleaseImageValid: the registry does not know the image, does not let the pull
	// secret read it, or can't be asked now.
	ReasonImageNotFound       = "ImageNotFound"
	ReasonImageUnauthorized   = "ImageUnauthorized"
	ReasonRegistryUnreachable = "RegistryUnreachable"
	ReasonVersionNotSupported = "VersionNotSupported"
	// IgnitionConfigured: also NotFound, of the DPUFlavor or the ConfigMap.
	ReasonIgnitionGenerated   = "IgnitionGenerated"
	ReasonWaitingForIgnition  = "WaitingForIgnition"
	ReasonIgnitionUnreachable = "IgnitionUnreachable"
	ReasonIgnitionInvalid     = "IgnitionInvalid"
	// PlatformReady.
	ReasonInstalled              = "Installed"
	ReasonHyperShiftNotInstalled = "HyperShiftNotInstalled"
	ReasonMetalLBNotInstalled    = "MetalLBNotInstalled"
	ReasonDPFNotInstalled        = "DPFNotInstalled"
)

// Event reasons.
const (
	// EventMismatchedAvailability warns that the two policies differ.
	EventMismatchedAvailability = "MismatchedAvailability"
)

// DPFHCPBridge turns a DPUCluster into a hosted OpenShift control plane: a HyperShift
// HostedCluster and NodePool, whose kubeconfig is handed to the DPUCluster.
//
// All it makes lives in its own namespace and bears its own name.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:resource:scope=Namespaced,shortName=dpfhcp,categories={dpf,hcp}
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`,description="Current phase"
// +kubebuilder:printcolumn:name="DPUCluster",type=string,JSONPath=`.spec.dpuClusterRef.name`,description="The DPUCluster it serves"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether the cluster is ready"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,description="Time since creation"
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 54 && !self.metadata.name.contains('.')",message="name must have at most 54 characters and no dot, so that what is named after it fits"
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) + size(self.spec.baseDomain) <= 245",message="name and baseDomain together must have at most 245 characters, so that the names of API and ingress fit"
type DPFHCPBridge struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec DPFHCPBridgeSpec `json:"spec"`
	// Status says, until the operator has looked at the bridge, that nothing is known of it.
	//
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "NotLookedAt", message: "the operator has not looked at the bridge yet", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
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

// DPFHCPBridgeSpec is the hosted cluster that is wanted. What HyperShift can't change of
// a HostedCluster can't be changed here either.
//
// +kubebuilder:validation:XValidation:rule="self.exposeThroughLoadBalancer == false || size(self.metalLBVirtualIP) != 0",message="metalLBVirtualIP is required when exposeThroughLoadBalancer is true"
// +kubebuilder:validation:XValidation:rule="self.exposeThroughLoadBalancer == true || size(self.metalLBVirtualIP) == 0",message="metalLBVirtualIP must be empty when exposeThroughLoadBalancer is false"
// +kubebuilder:validation:XValidation:rule="(has(self.controlPlane) && has(self.controlPlane.disabledCapabilities) ? self.controlPlane.disabledCapabilities : []) == (has(oldSelf.controlPlane) && has(oldSelf.controlPlane.disabledCapabilities) ? oldSelf.controlPlane.disabledCapabilities : [])",message="disabledCapabilities is immutable: OpenShift can't change the capabilities of a cluster that exists"
type DPFHCPBridgeSpec struct {
	// DPUClusterRef is the DPUCluster, in any namespace. One DPUCluster serves one bridge.
	//
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="dpuClusterRef is immutable"
	DPUClusterRef ObjectReference `json:"dpuClusterRef"`

	// BaseDomain of the hosted cluster: its API is at api.NAME.BASEDOMAIN, its ingress at
	// *.apps.NAME.BASEDOMAIN.
	//
	// +required
	// +kubebuilder:validation:Pattern=`^([a-z0-9]+(-[a-z0-9]+)*\.)+[a-z]{2,}$`
	// +kubebuilder:validation:MinLength=4
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="baseDomain is immutable"
	BaseDomain string `json:"baseDomain"`

	// OCPReleaseImage is the OpenShift release, by tag or digest. A change upgrades the
	// cluster.
	//
	// +required
	// +kubebuilder:validation:Pattern=`^[a-z0-9][a-zA-Z0-9._\-:/@]*$`
	// +kubebuilder:validation:MinLength=10
	// +kubebuilder:validation:MaxLength=512
	OCPReleaseImage string `json:"ocpReleaseImage"`

	// SSHKeySecretRef names a Secret of the same namespace with the key ssh-publickey:
	// public keys that may log in to nodes.
	//
	// +required
	SSHKeySecretRef LocalObjectReference `json:"sshKeySecretRef"`

	// PullSecretRef names a Secret of the same namespace with the key .dockerconfigjson:
	// credentials for the registries that OpenShift's images come from.
	//
	// +required
	PullSecretRef LocalObjectReference `json:"pullSecretRef"`

	// EtcdStorageClass is the StorageClass of etcd's volumes, which has to make them by
	// itself.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="etcdStorageClass is immutable"
	EtcdStorageClass string `json:"etcdStorageClass"`

	// ControlPlaneAvailabilityPolicy: HighlyAvailable runs three replicas of the control
	// plane and of etcd, SingleReplica one.
	//
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="controlPlaneAvailabilityPolicy is immutable: HyperShift can't change it of a cluster that exists"
	ControlPlaneAvailabilityPolicy AvailabilityPolicy `json:"controlPlaneAvailabilityPolicy"`

	// InfrastructureAvailabilityPolicy is that of ingress and other infrastructure.
	//
	// +required
	InfrastructureAvailabilityPolicy AvailabilityPolicy `json:"infrastructureAvailabilityPolicy"`

	// ExposeThroughLoadBalancer exposes the API server at metalLBVirtualIP by MetalLB;
	// otherwise it is exposed on ports of the management cluster's nodes.
	//
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="exposeThroughLoadBalancer is immutable: HyperShift can't change how a cluster that exists is published"
	ExposeThroughLoadBalancer bool `json:"exposeThroughLoadBalancer"`

	// MetalLBVirtualIP is the address of the API server when it is exposed through a load
	// balancer, and empty otherwise: IPv4, IPv6, or one of each with a comma between them. The
	// management cluster's Services must have the families.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=55
	// +kubebuilder:validation:XValidation:rule="self == '' || (self.split(',').all(a, isIP(a) && ip.isCanonical(a)) && (self.split(',').size() == 1 || self.split(',').size() == 2 && ip(self.split(',')[0]).family() != ip(self.split(',')[1]).family()))",message="metalLBVirtualIP must be an IPv4 or IPv6 address in its shortest form, or one of each with a comma between them, such as 192.168.1.100,fd00::100"
	// +kubebuilder:default=""
	MetalLBVirtualIP string `json:"metalLBVirtualIP,omitempty"`

	// Networking is the networks of the hosted cluster.
	//
	// +optional
	// +kubebuilder:default={}
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="networking is immutable: HyperShift can't change the networks of a cluster that exists"
	Networking Networking `json:"networking,omitempty,omitzero"`

	// ControlPlane says where the control plane's pods run, and what it is made without.
	//
	// +optional
	ControlPlane *ControlPlane `json:"controlPlane,omitempty"`

	// DPUIgnition has DPUs installed as workers of the hosted cluster: the template that DPF
	// boots them with is made and kept. Without it somebody else has to make one.
	//
	// +optional
	DPUIgnition *DPUIgnition `json:"dpuIgnition,omitempty"`

	// ProvisioningTimeout is how long the cluster may take to become ready, at first and after
	// each change. A bridge that takes longer is Failed until it is ready.
	//
	// +optional
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,6}([.][0-9]{1,9})?(ms|s|m|h))+$') && duration(self) >= duration('1m')",message="provisioningTimeout must be a time of at least one minute such as 30m or 1h30m"
	ProvisioningTimeout metav1.Duration `json:"provisioningTimeout,omitempty,omitzero"`

	// ClusterType is the user's own category, for example dpf-production. It becomes a
	// label of what is made.
	//
	// +required
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	ClusterType string `json:"clusterType"`
}

// DPUIgnition is what DPUs are installed with.
type DPUIgnition struct {
	// FlavorName is the DPUFlavor, in the DPUCluster's namespace.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	FlavorName string `json:"flavorName"`

	// MachineOSURL is the image of the DPUs' system, that of the release with the drivers of
	// BlueField. Change it with ocpReleaseImage.
	//
	// +required
	// +kubebuilder:validation:Pattern=`^[a-z0-9][a-zA-Z0-9._\-:/@]*$`
	// +kubebuilder:validation:MinLength=10
	// +kubebuilder:validation:MaxLength=512
	MachineOSURL string `json:"machineOSURL"`

	// ConfigMapRef names a ConfigMap of the same namespace with ignitions of spec 3 that go
	// over what is made, a file or unit in place of one of its name: target.ign of the installed
	// DPU, live.ign of the system that installs it.
	//
	// +optional
	ConfigMapRef *LocalObjectReference `json:"configMapRef,omitempty"`
}

// ObjectReference names an object in a namespace.
type ObjectReference struct {
	// Name of the object.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// Namespace of the object.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
}

// LocalObjectReference names an object in the same namespace.
type LocalObjectReference struct {
	// Name of the object.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// AvailabilityPolicy says how many replicas there are.
//
// +kubebuilder:validation:Enum=HighlyAvailable;SingleReplica
type AvailabilityPolicy string

const (
	// HighlyAvailable runs three replicas.
	HighlyAvailable AvailabilityPolicy = "HighlyAvailable"
	// SingleReplica runs one.
	SingleReplica AvailabilityPolicy = "SingleReplica"
)

// DPFHCPBridgePhase sums the conditions up.
//
// +kubebuilder:validation:Enum=Pending;Provisioning;Ready;Failed;Deleting
type DPFHCPBridgePhase string

const (
	// PhasePending: what the bridge stands on is not there yet.
	PhasePending DPFHCPBridgePhase = "Pending"
	// PhaseProvisioning: the hosted cluster is being made or upgraded.
	PhaseProvisioning DPFHCPBridgePhase = "Provisioning"
	// PhaseReady: the hosted cluster can be used.
	PhaseReady DPFHCPBridgePhase = "Ready"
	// PhaseFailed: a person has to act; the message says how.
	PhaseFailed DPFHCPBridgePhase = "Failed"
	// PhaseDeleting: what was made is being removed.
	PhaseDeleting DPFHCPBridgePhase = "Deleting"
)

// DPFHCPBridgeStatus is what is known of the hosted cluster.
type DPFHCPBridgeStatus struct {
	// Phase is computed from the conditions on every pass.
	//
	// +optional
	Phase DPFHCPBridgePhase `json:"phase,omitempty"`

	// Conditions of the bridge.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	// +patchMergeKey=type
	// +patchStrategy=merge
	Conditions []metav1.Condition `json:"conditions,omitempty" patchMergeKey:"type" patchStrategy:"merge"`

	// HostedClusterRef is the HostedCluster that was made.
	//
	// +optional
	HostedClusterRef *ObjectReference `json:"hostedClusterRef,omitempty"`

	// NodePoolRef is the NodePool that was made.
	//
	// +optional
	NodePoolRef *ObjectReference `json:"nodePoolRef,omitempty"`

	// APIEndpoint is the URL of the API server: https://api.NAME.BASEDOMAIN:6443.
	//
	// +optional
	APIEndpoint string `json:"apiEndpoint,omitempty"`

	// IngressEndpoint is the wildcard name of the ingress: *.apps.NAME.BASEDOMAIN.
	//
	// +optional
	IngressEndpoint string `json:"ingressEndpoint,omitempty"`

	// KubeconfigSecretRef is the Secret with the administrator's kubeconfig.
	//
	// +optional
	KubeconfigSecretRef *LocalObjectReference `json:"kubeconfigSecretRef,omitempty"`

	// IgnitionConfigMapRef is the template that DPUs are booted with, in the DPUCluster's
	// namespace.
	//
	// +optional
	IgnitionConfigMapRef *LocalObjectReference `json:"ignitionConfigMapRef,omitempty"`

	// ProvisioningSince is since when the cluster is waited for; empty while it is ready, and
	// before it is made.
	//
	// +optional
	ProvisioningSince *metav1.Time `json:"provisioningSince,omitempty"`

	// ObservedGeneration is the generation of the spec that this status is about.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Message says what is waited for or wrong.
	//
	// +optional
	Message string `json:"message,omitempty"`
}

// StatusConditions points at the bridge's conditions, for kit/step.
func (b *DPFHCPBridge) StatusConditions() *[]metav1.Condition { return &b.Status.Conditions }

// SetObservedGeneration notes the generation that the status speaks of.
func (b *DPFHCPBridge) SetObservedGeneration(generation int64) {
	b.Status.ObservedGeneration = generation
}
