// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package generic simulates a sender of jobs that has no CI platform: it keeps jobs,
// tells of each by a signed webhook until that is answered with 2xx, and hears from the
// job's command when it begins and ends.
//
// State of a job:
//
//	         approve            started               finished
//	waiting ---------> queued ----------> in_progress ----------> completed
//	                     |                    |                       ^
//	                     +------- cancel -----+-----------------------+
//
// A webhook is one JSON object with id, source, name, state, conclusion, labels and url,
// signed as Standard Webhooks are or with X-Hub-Signature-256. Commands call
//
//	GET  /jobs/{id}            what there is to do
//	POST /jobs/{id}/started    {"by": "..."}
//	POST /jobs/{id}/finished   {"conclusion": "success"}
//
// An unknown path answers 501 and is a control.Violation, and so is whatever else a
// command must not do: to finish a job that it has not started, or to start one that is
// over. A job that is started again, because its machine died, counts in Job.Requeues.
//
// The signatures are those of the Standard Webhooks specification, and GitHub's where the
// sender is set so. All else is the product's own contract with such senders
// (docs/guides/generic.md): there is no platform that it could differ from.
//
// The simulator has no package state. Time comes from Options.Clock.
package generic
