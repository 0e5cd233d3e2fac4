// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package control serves the control API of a running simulator. With the control API, other
// processes read the simulator's state and inject faults. The API uses plain HTTP on a loopback
// address of its own:
//
//	GET  /sim/state          VMs, volumes, tasks and their counts ([State])
//	GET  /sim/calls          the number of calls, by class and by VM (pve.CallCounts)
//	GET  /sim/floor?jobs=&job=  the fastest possible run ([Floor])
//	GET  /sim/faults         the active rules
//	POST /sim/faults         adds rules ([]pve.Fault), including states of nodes such as
//	                         {"kind": "node-hung", "node": "pve2"}; DELETE removes all rules
//	GET  /sim/vm/{id}/log    a VM's console, as text
//	GET  /sim/violations     calls that no correct client makes ([]pve.Violation)
package control
