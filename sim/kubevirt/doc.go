// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubevirt simulates KubeVirt on a real Kubernetes API server. It does what virt-controller,
// virt-handler and a guest do, with objects of KubeVirt's own CRDs (see sim/kubevirt/crds).
//
//	VirtualMachine ──runStrategy──► VirtualMachineInstance
//	   Stopped         Halted          (none)
//	   Starting        Once, Always    Pending ─► Scheduling ─► Scheduled
//	   Running         …               Running ─► Succeeded (the guest powered off)
//	   Terminating     deleted                └─► Failed    (crash, node lost)
//
// The simulator follows KubeVirt v1.9.0: pkg/virt-controller/watch/vm/vm.go for run strategies, printable
// statuses and finalizers, watch/vmi/lifecycle.go for phases, and watch/migration for migrations. It also
// simulates CDI for dataVolumeTemplates.
//
// Validate implements KubeVirt's admission webhooks. A Cluster records a violation for each object that
// the webhooks would have rejected. The API subresources.kubevirt.io (start, stop, restart) is not
// served, because it needs an aggregated API server. Clients set runStrategy instead, and tests call
// Start, Stop and Restart, which do the same as that API.
package kubevirt
