// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gitea simulates the part of Gitea or Forgejo that assigns jobs of Actions to runners: the
// REST API v1 for runners, jobs and tasks of repositories, organisations and the instance; the
// calls of act_runner and forgejo-runner; and Gitea's webhook workflow_job.
//
// The simulator validates every request: the names of its parameters and fields, its content type,
// and the scopes of its credential. It records each violation as a control.Violation. A request to
// an unknown path is a violation too, and its response is 501. The simulator ignores an unknown
// parameter, and records it as a violation.
//
// The behaviour of the simulator has these sources:
//
//   - The sources of the servers (Gitea 1.27, Forgejo 15) and their API descriptions: paths, scopes,
//     the fields of runners, jobs, tasks and webhooks, pages, and how runners are matched, disabled and
//     removed after their one job.
//   - The sources of the runner programs (gitea-runner 3, forgejo-runner 12 and 13): their calls, and
//     the lines that the simulated runners in simrunner print. No real runner program has run against
//     this simulator, because it serves the calls of runners only in the JSON format of the Connect
//     protocol, and the real programs use protocol buffers.
//   - Neither: the texts of errors that the sources do not have.
//
// State of a job, with Forgejo's names, and with Gitea's names in brackets if they differ:
//
//	blocked (waiting) --> waiting (queued) --> running (in_progress) --> success, failure
//	    |                     |                     |
//	    +---------------------+---------------------+--> cancelled
//
// A runner that requests a job receives a waiting job if the runner belongs to the job's
// repository, to the owner of the repository or to the instance, and has all labels of the job (the
// case matters). At Forgejo, a runner can also request a job by its handle. A running job fails if
// its runner makes no calls for too long.
//
// The simulator has no package state. Options.Clock is the source of the current time.
package gitea
