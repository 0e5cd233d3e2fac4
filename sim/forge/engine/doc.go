// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package engine holds what the simulators of CI platforms share: one lock and one clock, a seeded
// source of faults, the record of contract violations, and the queue of outgoing webhooks.
//
// A simulator embeds a Record, which implements a part of control.Simulator, and has a Core and an
// Outbox:
//
//	change ──► Outbox.Post ──(faults: lost, late, twice)──► deliver, in order for each job
package engine
