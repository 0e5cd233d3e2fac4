// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pve simulates the HTTP API of a Proxmox VE cluster, closely enough
// that software written for the real one can be developed and tested against
// it: stateful VMs, templates, storages and pools, asynchronous tasks with
// UPIDs, locks and lock waits, users, API tokens and permissions, the ten
// second lag of the cluster listing, and the error texts Proxmox puts into the
// HTTP reason phrase.
//
// A [Model] says what the cluster looks like; [New] builds a [Server] from it
// and [Server.Start] makes it listen. Nothing is kept in package variables, so
// any number of simulated clusters run side by side in one process.
//
// The simulator is strict. A call it does not know is answered with 501 and
// recorded as a violation ([Server.Violations]); package pvetest fails the
// test for it. Time comes from an injected clock, chance from a seeded source.
//
// Faults ([Fault]) reproduce what goes wrong on real clusters: lock timeouts,
// lost tasks, half-made clones, stale listings, nodes that do not answer.
// Guests ([Guest]) say what a booted VM does: nothing, power off after a while,
// run a real program with the cloud-init data of the attached drive
// ([GuestExec]), or really boot under QEMU from a clone of the template's image
// ([GuestQEMU], package vm).
//
//	stopped --start--> running --guest powers off, stop, crash--> stopped
//	   |                  |
//	 destroy            shutdown (asks the guest)
package pve
