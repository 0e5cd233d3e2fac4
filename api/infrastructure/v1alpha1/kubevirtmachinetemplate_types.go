// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KubevirtMachineTemplateResource is what machines are made from.
type KubevirtMachineTemplateResource struct {
	// spec of the machines.
	Spec KubevirtMachineSpec `json:"spec"`
}

// KubevirtMachineTemplateSpec holds the template.
type KubevirtMachineTemplateSpec struct {
	// template of the machines. Its addresses cannot be changed, as those of a machine.
	Template KubevirtMachineTemplateResource `json:"template"`
}

// KubevirtMachineTemplate is what the machines of a node pool are made from. The pool
// makes a new one when its spec changes, and removes those that no machine is made from.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=kvmt,categories=hyperfleet
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.metadata.labels.infrastructure\.hyperfleet\.io/node-pool`
// +kubebuilder:printcolumn:name="Network",type=string,JSONPath=`.spec.template.spec.bootstrapNetworkConfig.networkName`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type KubevirtMachineTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the template.
	Spec KubevirtMachineTemplateSpec `json:"spec"`
}

// KubevirtMachineTemplateList is a list of KubevirtMachineTemplate.
//
// +kubebuilder:object:root=true
type KubevirtMachineTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []KubevirtMachineTemplate `json:"items"`
}
