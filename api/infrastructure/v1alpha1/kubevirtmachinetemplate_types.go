// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// KubevirtMachineTemplateResource defines the machines that are created from the template.
type KubevirtMachineTemplateResource struct {
	// spec is the spec of the machines.
	Spec KubevirtMachineSpec `json:"spec"`
}

// KubevirtMachineTemplateSpec holds the template.
type KubevirtMachineTemplateSpec struct {
	// template is the template of the machines. Its addresses cannot be changed, as those of a machine
	// cannot.
	Template KubevirtMachineTemplateResource `json:"template"`
}

// KubevirtMachineTemplate defines what the machines of a node pool are created from. When the spec of
// the pool changes, the operator creates a new template and deletes templates from which no machine was
// created.
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

	// spec holds the template.
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
