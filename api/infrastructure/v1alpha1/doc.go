// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the API of long-lived machines. KubevirtNodePool is a pool of KubeVirt machines,
// KubevirtMachineTemplate defines what its machines are created from, and KubevirtMachine is one of its
// machines. HostFleet is a fleet of long-lived hosts. LinuxMachine and ScalewayAppleSiliconMachine are
// hosts. All hosts have a HostStatus.
//
// The package has only types, validation markers and names. It has no behavior and imports nothing but
// apimachinery.
//
// +kubebuilder:object:generate=true
// +groupName=infrastructure.hyperfleet.io
package v1alpha1
