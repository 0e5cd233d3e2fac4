// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubevirt plays KubeVirt on a real Kubernetes API server: it does what
// virt-controller, virt-handler and a guest do, to objects of KubeVirt's own kinds (see
// sim/kubevirt/crds).
//
//	VirtualMachine ──runStrategy──► VirtualMachineInstance
//	   Stopped         Halted          (none)
//	   Starting        Once, Always    Pending ─► Scheduling ─► Scheduled
//	   Running         …               Running ─► Succeeded (the guest powered off)
//	   Terminating     deleted                └─► Failed    (crash, node lost)
//
// What it does follows KubeVirt v1.9.0: pkg/virt-controller/watch/vm/vm.go for run
// strategies, printable statuses and finalizers, watch/vmi/lifecycle.go for phases,
// watch/migration for migrations. CDI's part in dataVolumeTemplates is played too.
//
// KubeVirt's admission webhooks are Validate: a Cluster reports what they would have
// refused as a violation. The subresources.kubevirt.io
// API (start, stop, restart) is not served, because it needs an aggregated API server:
// clients set runStrategy, and Start, Stop and Restart do what that API would.
package kubevirt
