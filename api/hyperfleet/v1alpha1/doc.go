// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the API of machines for CI jobs. A HypervisorCluster is the connection to a
// hypervisor, a HypervisorMachineTemplate defines what a machine is cloned from, a RunnerPool defines
// how many machines there are, a MachineClaim is one machine, a RunnerJob is one CI job as the CI
// platform has reported it, a RunnerLog is the end of a runner's log, and a DNSRegistration records the
// DNS records of a machine.
//
// The package has only types, validation markers and names. It has no behavior and imports nothing but
// apimachinery.
//
// +kubebuilder:object:generate=true
// +groupName=hyperfleet.io
package v1alpha1
