// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hosts is the area for long-lived hosts that run machines. Every host of a kind gets the
// same configuration, which the operator pushes over SSH. The operator pushes again when the
// configuration changes or when a host has drifted from it.
//
//	Config ──render──► Plan: parts in order ──push──► host
//	                     │                              │ probe, part by part
//	                     └─ digests ── compare ◄────────┘
//
//	HostFleet ◄─ counts ── hosts' statuses ◄── machine/ ── WorkerPool ── push/, ssh/ ──► host
//	    └─ permits (rollout/) ─────────────────►┘
//
// This folder holds only the wiring (setup.go). The folders below it hold the rest:
//
//   - plan/ has the plan and its digests, and its subfolders render the plan for each kind of host.
//   - drift/ decides which action a host needs, and rollout/ decides which hosts of a fleet may be
//     pushed to. Like plan/, both are pure.
//   - machine/ reconciles hosts and depends on no particular kind. linux/ and mac/ are the kinds.
//   - fleet/ grants permits, and creates and deletes hosts to match the number of replicas.
//   - nodecert/ issues the credentials with which hosts join their clusters.
package hosts
