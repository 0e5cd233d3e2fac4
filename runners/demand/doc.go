// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package demand computes how many machines the queued CI jobs need.
//
// Each job is a RunnerJob object. The RunnerJobs of a namespace are its job ledger. The
// Receiver writes each webhook into the ledger before it acknowledges the webhook.
// JobReconciler asks the CI platform about jobs whose webhooks are missing. Each reconcile
// computes a pool's desired number of machines from the whole ledger; events only trigger a
// reconcile. For this reason duplicate, late, lost and replayed webhooks all give the same
// number.
//
//	webhook --> Merge --> RunnerJob --> Match, FindDemand --> Decide --> claims created, deleted
//	confirm --^
//
// The state of a job only moves forward:
//
//	Waiting --> Queued --> Running --> Completed --> (deleted after the retention)
//
// Each job has a timeline, from the platform's job queue to the end of the job's machine. The
// timeline stays after the machine is deleted. While the job waits, the timeline and the
// condition Served give the cause.
//
// Merge, Match, FindDemand, Decide and BuildTimeline are pure functions.
package demand
