// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// The networks of a hosted cluster whose bridge names no networks. They are the defaults of HyperShift's
// schema. They are written to the HostedCluster, so that they do not change if HyperShift's defaults
// change.
const (
	DefaultClusterNetwork = "10.132.0.0/14"
	DefaultServiceNetwork = "172.31.0.0/16"
)

// CIDR is a network: an address and a prefix length, such as 10.132.0.0/14.
//
// +kubebuilder:validation:MaxLength=43
// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self) == cidr(self).masked()",message="write a network without bits beyond its prefix, such as 10.132.0.0/14 or fd01::/48"
type CIDR string

// Networking defines the networks of a hosted cluster. They must not overlap with each other, or with
// networks that the cluster's workers have to reach.
//
// +kubebuilder:validation:XValidation:rule="!has(self.clusterNetwork) || !has(self.serviceNetwork) || self.clusterNetwork.all(c, !isCIDR(c.cidr) || self.serviceNetwork.all(s, !isCIDR(s.cidr) || !(cidr(c.cidr).containsIP(cidr(s.cidr).ip()) || cidr(s.cidr).containsIP(cidr(c.cidr).ip()))))",message="clusterNetwork and serviceNetwork must not overlap"
// +kubebuilder:validation:XValidation:rule="!has(self.clusterNetwork) || !has(self.machineNetwork) || self.clusterNetwork.all(c, !isCIDR(c.cidr) || self.machineNetwork.all(m, !isCIDR(m.cidr) || !(cidr(c.cidr).containsIP(cidr(m.cidr).ip()) || cidr(m.cidr).containsIP(cidr(c.cidr).ip()))))",message="clusterNetwork and machineNetwork must not overlap"
// +kubebuilder:validation:XValidation:rule="!has(self.serviceNetwork) || !has(self.machineNetwork) || self.serviceNetwork.all(s, !isCIDR(s.cidr) || self.machineNetwork.all(m, !isCIDR(m.cidr) || !(cidr(s.cidr).containsIP(cidr(m.cidr).ip()) || cidr(m.cidr).containsIP(cidr(s.cidr).ip()))))",message="serviceNetwork and machineNetwork must not overlap"
// +kubebuilder:validation:XValidation:rule="!has(self.clusterNetwork) || !has(self.serviceNetwork) || !self.clusterNetwork.all(c, isCIDR(c.cidr)) || !self.serviceNetwork.all(s, isCIDR(s.cidr)) || self.clusterNetwork.map(c, cidr(c.cidr).ip().family()) == self.serviceNetwork.map(s, cidr(s.cidr).ip().family())",message="clusterNetwork and serviceNetwork must be of the same address families, in the same order"
type Networking struct {
	// clusterNetwork holds the networks of the pods' addresses: one network, or one of each address
	// family.
	//
	// +optional
	// +kubebuilder:default={{cidr: "10.132.0.0/14"}}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +listType=atomic
	// +kubebuilder:validation:XValidation:rule="size(self) < 2 || !self.all(n, isCIDR(n.cidr)) || cidr(self[0].cidr).ip().family() != cidr(self[1].cidr).ip().family()",message="clusterNetwork takes one network of each address family"
	ClusterNetwork []ClusterNetwork `json:"clusterNetwork,omitempty"`

	// serviceNetwork holds the networks of the Services' addresses: one network, or one of each address
	// family.
	//
	// +optional
	// +kubebuilder:default={{cidr: "172.31.0.0/16"}}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +listType=atomic
	// +kubebuilder:validation:XValidation:rule="size(self) < 2 || !self.all(n, isCIDR(n.cidr)) || cidr(self[0].cidr).ip().family() != cidr(self[1].cidr).ip().family()",message="serviceNetwork takes one network of each address family"
	ServiceNetwork []Network `json:"serviceNetwork,omitempty"`

	// machineNetwork holds the networks of the workers' own addresses. Default: no machine network is set
	// in the HostedCluster.
	//
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +listType=atomic
	// +kubebuilder:validation:XValidation:rule="size(self) < 2 || !self.all(n, isCIDR(n.cidr)) || cidr(self[0].cidr).ip().family() != cidr(self[1].cidr).ip().family()",message="machineNetwork takes one network of each address family"
	MachineNetwork []Network `json:"machineNetwork,omitempty"`
}

// Network is a network of Services or workers.
type Network struct {
	// cidr is the network, such as 172.31.0.0/16.
	//
	// +required
	CIDR CIDR `json:"cidr"`
}

// ClusterNetwork is a network of pods. Each worker gets a part of it.
//
// +kubebuilder:validation:XValidation:rule="!has(self.hostPrefix) || !isCIDR(self.cidr) || (self.hostPrefix >= cidr(self.cidr).prefixLength() && self.hostPrefix <= (cidr(self.cidr).ip().family() == 4 ? 32 : 128))",message="hostPrefix must be at least the prefix length of the network, and at most 32 for IPv4 or 128 for IPv6"
type ClusterNetwork struct {
	// cidr is the network, such as 10.132.0.0/14.
	//
	// +required
	CIDR CIDR `json:"cidr"`

	// hostPrefix is the prefix length of each worker's part: 23 for IPv4 is 512 addresses. Default:
	// OpenShift's default.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	HostPrefix int32 `json:"hostPrefix,omitempty"`
}

// ControlPlane defines where on the management cluster a hosted control plane runs, and which
// capabilities of OpenShift the hosted cluster does not have.
type ControlPlane struct {
	// nodeSelector selects by labels the nodes on which the control plane's pods run. Default: HyperShift
	// selects the nodes. A change moves running pods.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=20
	// +kubebuilder:validation:XValidation:rule="self.all(k, !format.qualifiedName().validate(k).hasValue())",message="nodeSelector must have valid Kubernetes keys such as example.com/control-plane"
	NodeSelector map[string]LabelValue `json:"nodeSelector,omitempty"`

	// tolerations allow the control plane's pods to run on nodes with taints. They are added to the
	// tolerations that HyperShift sets.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=25
	// +listType=atomic
	Tolerations []Toleration `json:"tolerations,omitempty"`

	// labels are added to the labels of the control plane's pods, for example for policies and cost
	// allocation. A change restarts all of these pods.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=20
	// +kubebuilder:validation:XValidation:rule="self.all(k, !format.qualifiedName().validate(k).hasValue())",message="labels must have valid Kubernetes keys such as example.com/team"
	Labels map[string]LabelValue `json:"labels,omitempty"`

	// disabledCapabilities are the optional parts of OpenShift that the hosted cluster does not have.
	// OpenShift cannot change them for an existing cluster. All except ImageRegistry and baremetal need
	// OpenShift 4.20 or newer.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=7
	// +kubebuilder:validation:items:Enum=ImageRegistry;openshift-samples;Insights;baremetal;Console;NodeTuning;Ingress
	// +listType=set
	// +kubebuilder:validation:XValidation:rule="!('Ingress' in self) || 'Console' in self",message="disabledCapabilities with Ingress must also have Console, because the console is reached through the ingress"
	DisabledCapabilities []string `json:"disabledCapabilities,omitempty"`
}

// LabelValue is the value of a Kubernetes label.
//
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:XValidation:rule="self.matches('^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$')",message="write the value of a label, such as team-a: letters, digits, '-', '_' and '.', with a letter or digit first and last"
type LabelValue string

// Toleration is a toleration of a taint, as in a Pod.
//
// +kubebuilder:validation:XValidation:rule="has(self.key) && size(self.key) > 0 || has(self.operator) && self.operator == 'Exists'",message="a toleration without key matches all taints and needs operator Exists: set key, or set operator to Exists"
// +kubebuilder:validation:XValidation:rule="!has(self.operator) || self.operator != 'Exists' || !has(self.value) || size(self.value) == 0",message="a toleration with operator Exists must not have a value: remove value, or set operator to Equal"
// +kubebuilder:validation:XValidation:rule="!has(self.tolerationSeconds) || has(self.effect) && self.effect == 'NoExecute'",message="tolerationSeconds needs effect NoExecute: set effect to NoExecute, or remove tolerationSeconds"
type Toleration struct {
	// key is the key of the taint. If it is empty and operator is Exists, the toleration matches all
	// taints.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self == '' || !format.qualifiedName().validate(self).hasValue()",message="key must be a valid Kubernetes key such as example.com/control-plane"
	Key string `json:"key,omitempty"`

	// operator defines whether the taint's value must match (Equal) or not (Exists). Default: Equal.
	//
	// +optional
	// +kubebuilder:validation:Enum=Exists;Equal
	Operator string `json:"operator,omitempty"`

	// value is the value of the taint. It is used with operator Equal.
	//
	// +optional
	Value LabelValue `json:"value,omitempty"`

	// effect is the effect of the taint. If it is empty, the toleration matches all effects.
	//
	// +optional
	// +kubebuilder:validation:Enum=NoSchedule;PreferNoSchedule;NoExecute
	Effect string `json:"effect,omitempty"`

	// tolerationSeconds is how many seconds a pod stays on a node after the taint was added. Default: the
	// pod stays indefinitely.
	//
	// +optional
	TolerationSeconds *int64 `json:"tolerationSeconds,omitempty"`
}
