// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package buildkite simulates the part of Buildkite that assigns CI jobs to agents which stacks
// start: one cluster of one organization, with its queues.
//
// Below /v3 it serves the Stacks API (https://buildkite.com/docs/apis/agent-api/stacks), the
// metrics of the cluster, and the calls of the agent API by an agent with --acquire-job (as of
// agent 3.137). It sends the job webhooks of
// https://buildkite.com/docs/apis/webhooks/pipelines/job-events.
//
// The simulator validates every request against the documented fields and limits. It records each
// violation as a control.Violation. A request to an unknown path is a violation too, and its
// response is 501. The simulator ignores unknown fields, and records them as violations.
//
// The behaviour of the simulator has these sources:
//
//   - Buildkite's documentation: the Stacks API with its limits and rates, the webhooks and their
//     signatures, and the names of a job's variables.
//   - The requests and responses of the real agent 3.137, which has run whole jobs against this
//     simulator: registration, acquisition with its header, the required environment of a job,
//     meta-data, logs, states and the end of a job, that the server need not have a stream of pings,
//     and that the response for a missing job is 404.
//   - Neither: the texts of most errors, and that unknown fields are ignored.
//
// State of a job:
//
//	blocked --> scheduled <--> reserved --> accepted --> running --> finished
//	       approve   |   lapses    |  acquire      start    |  \--> canceling
//	                 +-------------+---- cancel: canceled <-+-----------/
//
// Buildkite has no equivalent of the fault deleteBusy of control.Faults. The faults rateLimit and
// secondaryRateLimit are the same, because Buildkite has one kind of limit.
//
// The simulator has no package state. Options.Clock is the source of the current time.
package buildkite
