// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package libvirt implements hypervisor.Provider for libvirt hosts with QEMU. The hosts of a cluster
// do not know each other, so the provider places the machines.
//
//	Provider ── host ── session ── RPC over a Unix socket, TLS or SSH ──► libvirtd
//	   │          └ inventory: the host's domains, kept by libvirt's events and by lists
//	   └ placement, IDs, one lock for each machine
//
// A machine is a domain whose UUID is computed from its operator, claim and ID. The call that creates
// the domain also writes the ownership record into its metadata. The names of its two volumes, the
// disk and the cloud-init ISO, hold the operator, the ID and the claim.
//
// A machine is started exactly once. The domain is started paused, so its guest does not run yet.
// Then the domain is defined with the mark "started", and then it is resumed. A domain without the mark
// has therefore never run, and a domain with the mark that is not active is not started again.
package libvirt
