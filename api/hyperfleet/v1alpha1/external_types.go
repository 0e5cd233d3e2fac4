// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// ExternalProvider is a provider for a hypervisor that is a program of its own, which the operator calls
// over gRPC.
type ExternalProvider struct {
	// address is where the program listens: unix:///PATH for a Unix socket that is mounted in the operator's
	// pod, or HOST:PORT for TLS with the client certificate in credentials.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=260
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^(unix:///[\w./-]{1,100}|([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5})$') && !self.contains('..')`,message="external.address must be unix:///PATH such as unix:///run/providers/example.sock, or HOST:PORT such as provider.example.com:9443"
	Address string `json:"address"`
	// settings are the settings of the program. Its documentation explains them. They must not contain
	// secrets, because the program has its credentials itself.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 63 && size(self[k]) <= 1024)",message="external.settings must have keys of at most 63 and values of at most 1024 characters"
	Settings map[string]string `json:"settings,omitempty"`
}

// ExternalTemplate is a template of an external provider and how it is cloned.
type ExternalTemplate struct {
	// name is the name of the template, as the provider's documentation describes it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// storage is the storage for the disks of full clones. Default: spec.defaultStorage of the
	// HypervisorCluster.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	Storage string `json:"storage,omitempty"`
	// linkedClone shares the template's disk instead of copying it, if the provider can do so.
	// +optional
	// +kubebuilder:default=true
	LinkedClone *bool `json:"linkedClone,omitempty"`
}
