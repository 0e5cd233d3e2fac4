// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
)

// HypervisorMachineTemplateStatus is the observed state of the template.
type HypervisorMachineTemplateStatus struct {
	// observedGeneration is the generation of the spec that the status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions are the conditions of the template.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// sources are the templates on the hypervisor that machines can be cloned from.
	// +optional
	// +listType=map
	// +listMapKey=id
	Sources []ResolvedTemplate `json:"sources,omitempty"`
	// os is the operating system that the hypervisor records about the template: linux or windows. It is empty if
	// the hypervisor records none.
	// +optional
	OS string `json:"os,omitempty"`
	// runner is the newest release of the runner according to the CI platform (GitHub).
	// +optional
	Runner *RunnerRelease `json:"runner,omitempty"`
}

// RunnerRelease is the newest release of a runner.
type RunnerRelease struct {
	// version is the release.
	Version string `json:"version"`
	// downloadUrl is the URL of the download at the CI platform.
	// +optional
	DownloadURL string `json:"downloadUrl,omitempty"`
	// sha256 is the SHA-256 checksum of the download in hexadecimal.
	// +optional
	SHA256 string `json:"sha256,omitempty"`
	// since is the time at which the operator found the first release that is newer than machineVersion, or
	// version if none is newer. The deadline of the CI platform counts from that first release.
	Since metav1.Time `json:"since"`
	// machineVersion is the release of the runner in the newest machine that has reported one.
	// +optional
	MachineVersion string `json:"machineVersion,omitempty"`
}

// IsOutdated reports whether a release is newer than the one that machines run. It returns false if that one is unknown.
func (r *RunnerRelease) IsOutdated() bool {
	newest, err := version.ParseGeneric(r.Version)
	if err != nil || r.MachineVersion == "" {
		return false
	}

	machine, err := version.ParseGeneric(r.MachineVersion)

	return err != nil || machine.LessThan(newest)
}

// ResolvedTemplate is a template on the hypervisor.
type ResolvedTemplate struct {
	// id is the ID on the hypervisor. On Proxmox VE it is the VMID. On libvirt, where templates have no ID, it is
	// the host and the name.
	ID string `json:"id"`
	// name is the name on the hypervisor.
	// +optional
	Name string `json:"name,omitempty"`
	// node is the node that the template is on.
	Node string `json:"node"`
	// diskBytes is the size of the template's first disk, in bytes.
	// +optional
	DiskBytes int64 `json:"diskBytes,omitempty"`
}

// DeclaredOS returns the operating system that the spec names, and "" if it names none.
func (t *HypervisorMachineTemplate) DeclaredOS() string {
	if t.Spec.Bootstrap.OS != "" {
		return t.Spec.Bootstrap.OS
	}

	// The default of runner.os is linux, so only Windows is certain.
	if config := t.Spec.Bootstrap.Config; config != nil && config.GitHub != nil && config.GitHub.Runner != nil &&
		config.GitHub.Runner.OS == "win" {
		return OSWindows
	}

	return ""
}

// IsWindows reports whether machines of the template have Windows.
func (t *HypervisorMachineTemplate) IsWindows() bool {
	return cmp.Or(t.DeclaredOS(), t.Status.OS) == OSWindows
}

// SelectedSource returns the name of the template on the hypervisor that templateTags have selected. It returns ""
// if the template is not selected by tags, or not found yet.
func (t *HypervisorMachineTemplate) SelectedSource() string {
	if source := t.Spec.Template.Proxmox; source == nil || len(source.TemplateTags) == 0 || len(t.Status.Sources) == 0 {
		return ""
	}

	return t.Status.Sources[0].Name
}
