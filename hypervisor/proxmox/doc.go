// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package proxmox creates machines on Proxmox VE 8 and 9. It uses the session and the transport of
// github.com/luthermonson/go-proxmox.
//
// The diagram shows the phases of a machine and the API calls of each step. One machine needs ten calls of
// its own. Requests to the guest agent for the machine's address come on top of the ten. All machines share
// the VM list and the task polls.
//
//	reserved ─clone─► cloning ─upload─► cloned ─config, config─► configured ─[resize,] start─► started
//	running ─(powers off)─► stopped ─status─► Stopped ─config, destroy, delete ISO─► gone
//
// The description of a VM holds one JSON record that names the owner (see Record). The clone call writes
// that record. The provider reads and compares the record before each change to the VM. Tags are for
// people, and the provider never trusts a tag as proof of ownership.
//
// All machines of a connection share one list of /cluster/resources, one watcher of the tasks of each node,
// and limits on the calls per node and on the clones per storage. If a node does not respond, the provider
// sends no requests to that node for a back-off interval, and the other nodes stay in use. No method blocks
// its caller for longer than one call: if a machine waits for a task or for a clone slot, the provider
// wakes the machine's owner through hypervisor.Options.Wake.
package proxmox
