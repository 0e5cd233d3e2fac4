// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 holds the contracts of machines that HyperFleet keeps on
// infrastructure: node pools of KubeVirt machines (KubevirtNodePool), what their machines
// are made from (KubevirtMachineTemplate), and one machine (KubevirtMachine); fleets of
// long-lived hosts (HostFleet), and hosts of each kind (LinuxMachine), which all have a
// HostStatus.
//
// The package holds types, validation markers and names only: no behaviour, and
// no import beyond apimachinery.
//
// +kubebuilder:object:generate=true
// +groupName=infrastructure.hyperfleet.io
package v1alpha1
