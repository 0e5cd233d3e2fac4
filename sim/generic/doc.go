// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package generic simulates a sender of jobs that has no CI platform. It holds jobs and sends a
// signed webhook for each job until the response is 2xx. The command of a job calls the sender when
// it starts and when it finishes.
//
// State of a job:
//
//	         approve            started               finished
//	waiting ---------> queued ----------> in_progress ----------> completed
//	                     |                    |                       ^
//	                     +------- cancel -----+-----------------------+
//
// A webhook is one JSON object with id, source, name, state, conclusion, labels and url. Its
// signature is as in Standard Webhooks, or X-Hub-Signature-256. Commands call
//
//	GET  /jobs/{id}            returns the job
//	POST /jobs/{id}/started    {"by": "..."}
//	POST /jobs/{id}/finished   {"conclusion": "success"}
//
// A request to an unknown path is a control.Violation, and its response is 501. Other calls that a
// command must not make are violations too: to finish a job that it has not started, or to start a
// job that has ended. A job that is started again, because its machine failed, counts in
// Job.Requeues.
//
// The signatures are those of the Standard Webhooks specification, or GitHub's if the sender is
// configured for them. Everything else is HyperFleet's own contract with such senders
// (docs/guides/generic.md), so the simulator cannot differ from a platform.
//
// The simulator has no package state. Options.Clock is the source of the current time.
package generic
