// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Types of devices.
const (
	// DeviceGPU is the type of graphics processors.
	DeviceGPU = "gpu"
	// DevicePCI is the type of all devices whose type is not set.
	DevicePCI = "pci"
)

// DefaultDeviceCount is the number of devices whose count is not set.
const DefaultDeviceCount = 1

// MachineDevice is a kind of device of which a machine gets one or several.
type MachineDevice struct {
	// name is the name of the device. On Proxmox VE, it is a resource mapping for PCI devices. On KubeVirt, it is the
	// resource that the nodes offer, such as nvidia.com/GA102GL_A10. On libvirt, it is a name in devices of the hosts.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?(/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$')",message="name must have letters, digits, '.', '_' and '-', on KubeVirt with a prefix, such as gpu or nvidia.com/GA102GL_A10"
	Name string `json:"name"`
	// count is the number of these devices. Default: 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16
	Count int32 `json:"count,omitempty"`
	// type is gpu or pci. KubeVirt has a list of its own for GPUs. Other hypervisors do not distinguish them.
	// Default: pci.
	// +optional
	// +kubebuilder:validation:Enum=gpu;pci
	Type string `json:"type,omitempty"`
}

// LibvirtDevice is a kind of PCI devices of a host. All devices of a name must be alike.
type LibvirtDevice struct {
	// name is the name of the devices in resources.devices of templates.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// addresses are the PCI addresses of the devices, as lspci -D shows them, such as 0000:01:00.0. The host must be
	// able to pass them through (IOMMU, VFIO).
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=12
	// +kubebuilder:validation:XValidation:rule="self.all(a, a.matches('^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}[.][0-7]$'))",message="addresses must be PCI addresses such as 0000:01:00.0"
	Addresses []string `json:"addresses"`
}
