// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 holds the contracts of the runners area: how a hypervisor is
// reached (HypervisorCluster), what a machine is made from
// (HypervisorMachineTemplate), how many are wanted (RunnerPool), one machine
// (MachineClaim), and one CI job as its forge reported it (RunnerJob).
//
// The package holds types, validation markers and names only: no behaviour, and
// no import beyond apimachinery.
//
// +kubebuilder:object:generate=true
// +groupName=hyperfleet.io
package v1alpha1
