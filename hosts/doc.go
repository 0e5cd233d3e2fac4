// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hosts is the area of long-lived hosts that carry machines: one configuration
// for all, pushed over SSH, and pushed again where it changed or where a host no longer
// is as it was left.
//
//	Config ──render──► Plan: parts in order ──push──► host
//	                     │                              │ probe, part by part
//	                     └─ digests ── compare ◄────────┘
//
//	HostFleet ◄─ counts ── hosts' statuses ◄── machine/ ── WorkerPool ── push/, ssh/ ──► host
//	    └─ permits (rollout/) ─────────────────►┘
//
// This folder holds the wiring only (setup.go). plan/ has the plan and its digests, and
// below it what each kind of host is made of; drift/ says what has to happen to a host, and
// rollout/ which hosts of a fleet may be pushed to: all are pure. machine/ reconciles hosts
// of any kind and knows none; linux/ and mac/ are kinds. fleet/ gives out permits,
// and orders and returns hosts. nodecert/ makes what hosts join their clusters with.
package hosts
