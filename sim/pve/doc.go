// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pve simulates the HTTP API of a Proxmox VE cluster. The simulation is close enough to
// develop and test software that was written for a real cluster. It covers stateful VMs, templates,
// storages and pools, asynchronous tasks with UPIDs, locks and lock waits, users, API tokens and
// permissions, the cluster listing's lag of ten seconds, and the error texts that Proxmox VE writes
// into the HTTP reason phrase.
//
// A [Model] describes the cluster. [New] builds a [Server] from the model, and [Server.Start] makes
// the server listen. The package has no package variables with state, so one process can run any
// number of simulated clusters.
//
// The simulator is strict. It answers an unknown call with 501 and records a violation
// ([Server.Violations]). Package pvetest fails a test for which a violation was recorded. Time comes
// from an injected clock, and random numbers come from a seeded source.
//
// Faults ([Fault]) reproduce the failures of real clusters: lock timeouts, lost tasks, incomplete
// clones, stale listings, nodes that do not respond. Guests ([Guest]) define what a booted VM does.
// A guest does nothing, powers off after a time, runs a real program with the data of the attached
// cloud-init drive ([GuestExec]), or boots under QEMU from a clone of the template's image
// ([GuestQEMU], package vm).
//
//	stopped --start--> running --guest powers off, stop, crash--> stopped
//	   |                  |
//	 destroy            shutdown (by the guest)
package pve
