// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Networks of every hosted cluster whose bridge names no others: the defaults of HyperShift's
// schema, written out so that they stay what they are.
const (
	DefaultClusterNetwork = "10.132.0.0/14"
	DefaultServiceNetwork = "172.31.0.0/16"
)

// CIDR is a network: an address and the length of its prefix.
//
// +kubebuilder:validation:MaxLength=43
// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self) == cidr(self).masked()",message="write a network without bits beyond its prefix, such as 10.132.0.0/14 or fd01::/48"
type CIDR string

// Networking is the networks of a hosted cluster. None of them may overlap with another, nor
// be used by what the cluster's workers have to reach.
//
// +kubebuilder:validation:XValidation:rule="!has(self.clusterNetwork) || !has(self.serviceNetwork) || self.clusterNetwork.all(c, !isCIDR(c.cidr) || self.serviceNetwork.all(s, !isCIDR(s.cidr) || !(cidr(c.cidr).containsIP(cidr(s.cidr).ip()) || cidr(s.cidr).containsIP(cidr(c.cidr).ip()))))",message="clusterNetwork and serviceNetwork must not overlap"
// +kubebuilder:validation:XValidation:rule="!has(self.clusterNetwork) || !has(self.machineNetwork) || self.clusterNetwork.all(c, !isCIDR(c.cidr) || self.machineNetwork.all(m, !isCIDR(m.cidr) || !(cidr(c.cidr).containsIP(cidr(m.cidr).ip()) || cidr(m.cidr).containsIP(cidr(c.cidr).ip()))))",message="clusterNetwork and machineNetwork must not overlap"
// +kubebuilder:validation:XValidation:rule="!has(self.serviceNetwork) || !has(self.machineNetwork) || self.serviceNetwork.all(s, !isCIDR(s.cidr) || self.machineNetwork.all(m, !isCIDR(m.cidr) || !(cidr(s.cidr).containsIP(cidr(m.cidr).ip()) || cidr(m.cidr).containsIP(cidr(s.cidr).ip()))))",message="serviceNetwork and machineNetwork must not overlap"
// +kubebuilder:validation:XValidation:rule="!has(self.clusterNetwork) || !has(self.serviceNetwork) || !self.clusterNetwork.all(c, isCIDR(c.cidr)) || !self.serviceNetwork.all(s, isCIDR(s.cidr)) || self.clusterNetwork.map(c, cidr(c.cidr).ip().family()) == self.serviceNetwork.map(s, cidr(s.cidr).ip().family())",message="clusterNetwork and serviceNetwork must be of the same address families, in the same order"
type Networking struct {
	// ClusterNetwork is where pods have their addresses: one network, or one of each family.
	//
	// +optional
	// +kubebuilder:default={{cidr: "10.132.0.0/14"}}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +listType=atomic
	// +kubebuilder:validation:XValidation:rule="size(self) < 2 || !self.all(n, isCIDR(n.cidr)) || cidr(self[0].cidr).ip().family() != cidr(self[1].cidr).ip().family()",message="clusterNetwork takes one network of each address family"
	ClusterNetwork []ClusterNetwork `json:"clusterNetwork,omitempty"`

	// ServiceNetwork is where Services have their addresses: one network, or one of each
	// family.
	//
	// +optional
	// +kubebuilder:default={{cidr: "172.31.0.0/16"}}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +listType=atomic
	// +kubebuilder:validation:XValidation:rule="size(self) < 2 || !self.all(n, isCIDR(n.cidr)) || cidr(self[0].cidr).ip().family() != cidr(self[1].cidr).ip().family()",message="serviceNetwork takes one network of each address family"
	ServiceNetwork []Network `json:"serviceNetwork,omitempty"`

	// MachineNetwork is where the workers themselves have their addresses. Default: HyperShift
	// is told of none.
	//
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +listType=atomic
	// +kubebuilder:validation:XValidation:rule="size(self) < 2 || !self.all(n, isCIDR(n.cidr)) || cidr(self[0].cidr).ip().family() != cidr(self[1].cidr).ip().family()",message="machineNetwork takes one network of each address family"
	MachineNetwork []Network `json:"machineNetwork,omitempty"`
}

// Network is one network.
type Network struct {
	// CIDR of the network.
	//
	// +required
	CIDR CIDR `json:"cidr"`
}

// ClusterNetwork is a network that each worker is given a part of.
//
// +kubebuilder:validation:XValidation:rule="!has(self.hostPrefix) || !isCIDR(self.cidr) || (self.hostPrefix >= cidr(self.cidr).prefixLength() && self.hostPrefix <= (cidr(self.cidr).ip().family() == 4 ? 32 : 128))",message="hostPrefix must be no shorter than the network's own prefix, and fit its address family"
type ClusterNetwork struct {
	// CIDR of the network.
	//
	// +required
	CIDR CIDR `json:"cidr"`

	// HostPrefix is the length of the prefix of each worker's part: 23 of IPv4 is 512
	// addresses. Default: OpenShift's.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	HostPrefix int32 `json:"hostPrefix,omitempty"`
}

// ControlPlane says where on the management cluster a hosted control plane runs, and what it
// is made without.
type ControlPlane struct {
	// NodeSelector chooses by labels the nodes that the control plane's pods run on. Default:
	// HyperShift's own choice. A change moves pods that are there.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=20
	// +kubebuilder:validation:XValidation:rule="self.all(k, !format.qualifiedName().validate(k).hasValue())",message="nodeSelector must have valid Kubernetes keys such as example.com/control-plane"
	NodeSelector map[string]LabelValue `json:"nodeSelector,omitempty"`

	// Tolerations let the control plane's pods run on nodes with taints, beside those that
	// HyperShift tolerates by itself.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=25
	// +listType=atomic
	Tolerations []Toleration `json:"tolerations,omitempty"`

	// Labels that the control plane's pods bear beside their own, for policies and
	// accounts. A change restarts all of them.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=20
	// +kubebuilder:validation:XValidation:rule="self.all(k, !format.qualifiedName().validate(k).hasValue())",message="labels must have valid Kubernetes keys such as example.com/team"
	Labels map[string]LabelValue `json:"labels,omitempty"`

	// DisabledCapabilities are parts of OpenShift that the cluster is made without. OpenShift
	// can't change them of a cluster that exists. All but ImageRegistry and baremetal take
	// OpenShift 4.20 or newer.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=7
	// +kubebuilder:validation:items:Enum=ImageRegistry;openshift-samples;Insights;baremetal;Console;NodeTuning;Ingress
	// +listType=set
	// +kubebuilder:validation:XValidation:rule="!('Ingress' in self) || 'Console' in self",message="disabledCapabilities with Ingress must have Console, which is reached through it"
	DisabledCapabilities []string `json:"disabledCapabilities,omitempty"`
}

// LabelValue is the value of a label.
//
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$`
type LabelValue string

// Toleration of a taint, as that of a Pod.
//
// +kubebuilder:validation:XValidation:rule="has(self.key) && size(self.key) > 0 || has(self.operator) && self.operator == 'Exists'",message="a toleration without a key is of all taints, and its operator must be Exists"
// +kubebuilder:validation:XValidation:rule="!has(self.operator) || self.operator != 'Exists' || !has(self.value) || size(self.value) == 0",message="a toleration of operator Exists takes no value"
// +kubebuilder:validation:XValidation:rule="!has(self.tolerationSeconds) || has(self.effect) && self.effect == 'NoExecute'",message="tolerationSeconds needs effect NoExecute"
type Toleration struct {
	// Key of the taint; none with operator Exists is any.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self == '' || !format.qualifiedName().validate(self).hasValue()",message="key must be a valid Kubernetes key such as example.com/control-plane"
	Key string `json:"key,omitempty"`

	// Operator says whether the taint's value counts. Default: Equal.
	//
	// +optional
	// +kubebuilder:validation:Enum=Exists;Equal
	Operator string `json:"operator,omitempty"`

	// Value of the taint, with operator Equal.
	//
	// +optional
	Value LabelValue `json:"value,omitempty"`

	// Effect of the taint; none is any.
	//
	// +optional
	// +kubebuilder:validation:Enum=NoSchedule;PreferNoSchedule;NoExecute
	Effect string `json:"effect,omitempty"`

	// TolerationSeconds is how long a pod stays on a node that is given the taint. Default:
	// for good.
	//
	// +optional
	TolerationSeconds *int64 `json:"tolerationSeconds,omitempty"`
}
