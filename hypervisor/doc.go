// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hypervisor is the boundary to whatever makes machines: it says what a
// hypervisor must do for the runners area, and nothing about how.
//
// A Provider serves one HypervisorCluster. Its methods never block for longer than one
// API call: what takes time is started, and the caller is woken (Options.Wake) when it
// is worth looking again.
//
//	Create(no ID) ──► reserved ──► Create ──► creating ──► running ──► stopped ──► Delete ──► gone
//	                  (caller persists the ID)   │ each call goes as far as it can
//
// The error kinds decide what a caller does; see Kind.
package hypervisor
