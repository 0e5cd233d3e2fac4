// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package engine is what the simulators of CI platforms have in common: one lock and one
// clock, a seeded source of faults, the breaches of the platform's contract, and the
// webhooks that are on their way.
//
// A simulator embeds a Record, which answers the control API for it, and keeps a Core and
// an Outbox for itself:
//
//	change ──► Outbox.Post ──(faults: lost, late, twice)──► Deliver, in the order of each job
package engine
