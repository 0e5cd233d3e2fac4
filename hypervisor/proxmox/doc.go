// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package proxmox makes machines on Proxmox VE 8 and 9, over the session and transport
// of github.com/luthermonson/go-proxmox.
//
// A machine's life, and what each step costs in calls of its own (ten; questions to a
// guest agent for its address come on top, the shared listing and the task polls serve
// all machines together):
//
//	reserved ─clone─► cloning ─upload─► cloned ─config, config─► configured ─[resize,] start─► started
//	running ─(powers off)─► stopped ─status─► Stopped ─config, destroy, delete ISO─► gone
//
// Whose a machine is stands in its description as one JSON record (see Record), which
// travels with the clone call. Before anything is changed, the record is read and
// compared; tags are for people and are never believed.
//
// Three things are shared by all machines of a connection: one listing of
// /cluster/resources, one watcher of the tasks of each node, and gates that bound the
// calls per node and the clones per storage. A node that does not answer is left alone
// for a while, and the others go on. Nothing blocks a caller for longer than one call:
// a machine that waits for a task or a gate is woken through hypervisor.Options.Wake.
package proxmox
