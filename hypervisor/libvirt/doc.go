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
// A machine is started exactly once. The domain is started paused, so its guest does not run yet. Then the
// mark that it was started is written, and then the domain is resumed. So a guest without the mark has never
// run, and a machine with the mark that is off is not started again.
//
// Most machines are transient: libvirt forgets their domain when it is off, and only the disk is left. The
// mark is then the deletion of the ISO. The ISO is created before the disk, so these are the states:
//
//	domain   ISO      disk    the machine
//	missing  present  any     was not started
//	paused   present  exists  is being started
//	paused   deleted  exists  may be resumed
//	running  deleted  exists  runs
//	missing  deleted  exists  ran and is off
//
// The volumes show this only while they can be listed, so an unknown machine of a host whose pool is not active is neither
// gone nor created. A start needs an ISO, and the ISO that an earlier process has left is replaced together with the disk.
//
// The name of a transient machine's disk has an ending of its own, so that other disks without an ISO are not
// taken for it. Before the ending is a hash of the host's name, because hosts can share a file system. A machine
// that needs more than its volumes when it is off (isTransient) is defined. The definition has the mark, and is
// deleted with the machine.
package libvirt
