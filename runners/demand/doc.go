// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package demand knows how many machines the waiting CI jobs ask for.
//
// Demand is state and not events: every job is a RunnerJob object, the ledger. The
// Receiver writes webhooks into it before it acknowledges them, and JobReconciler asks
// the platform for what webhooks missed. What a pool wants is computed from the whole
// ledger on every pass; events only wake the loop. So duplicate, late, lost and replayed
// webhooks all end in the same number.
//
//	webhook --> Merge --> RunnerJob --> Match, Demand --> Desired --> claims made, deleted
//	repair  --^
//
// A job only ever goes forward:
//
//	Waiting --> Queued --> Running --> Completed --> (deleted after the retention)
//
// Each job has a timeline, from the platform's queue to the end of its machine, which is
// kept when the machine is gone. While the job waits, the timeline and the condition
// Served say what for.
//
// Merge, Match, Demand, Desired and Timeline are pure.
package demand
