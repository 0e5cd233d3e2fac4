// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package control lets other processes look into a running simulator and
// inject faults, over plain HTTP on a loopback address of its own:
//
//	GET  /sim/state          VMs, volumes, tasks and their counts ([State])
//	GET  /sim/calls          how many calls, by class and by VM (pve.CallCounts)
//	GET  /sim/floor?jobs=&job=  the fastest possible run ([Floor])
//	GET  /sim/faults         the rules in force
//	POST /sim/faults         adds rules ([]pve.Fault), also states of nodes such as
//	                         {"kind": "node-hung", "node": "pve2"}; DELETE removes all
//	GET  /sim/vm/{id}/log    a VM's console, as text
//	GET  /sim/violations     calls no correct client makes ([]pve.Violation)
package control
