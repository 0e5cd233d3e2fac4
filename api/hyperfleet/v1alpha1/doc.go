// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the API of the runners area. A HypervisorCluster is the connection to a
// hypervisor, a HypervisorMachineTemplate defines what a machine is cloned from, a RunnerPool defines
// how many machines there are, a MachineClaim is one machine, and a RunnerJob is one CI job as the CI
// platform has reported it.
//
// The package has only types, validation markers and names. It has no behavior and imports nothing but
// apimachinery.
//
// +kubebuilder:object:generate=true
// +groupName=hyperfleet.io
package v1alpha1
