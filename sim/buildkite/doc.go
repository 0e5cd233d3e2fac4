// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package buildkite simulates the part of Buildkite that hands CI jobs to agents which
// stacks start: one cluster of one organization, with its queues.
//
// It serves below /v3 the Stacks API (https://buildkite.com/docs/apis/agent-api/stacks),
// the calls of the agent API that an agent makes which was started with --acquire-job
// (as of agent 3.137), and the cluster's metrics, and sends the job webhooks of
// https://buildkite.com/docs/apis/webhooks/pipelines/job-events.
//
// Every request is checked against the documented fields and bounds. A breach is recorded
// as a control.Violation; an unknown path answers 501 and is a violation too. Fields that
// are not known are passed over, and recorded.
//
// From documentation: the Stacks API with its bounds and rates, the webhooks and their
// signatures, and the names of a job's variables. From what the real agent 3.137 sends and
// takes, which has run whole jobs against this simulator: registration, acquisition with its
// header, what a job's environment must hold, meta-data, logs, states and the end of a job,
// that there may be no stream of pings, and that a job which is not there is answered with
// 404. From neither: the words of most refusals, and that unknown fields are passed over.
//
// State of a job:
//
//	blocked --> scheduled <--> reserved --> accepted --> running --> finished
//	       approve   |   lapses    |  acquire      start    |  \--> canceling
//	                 +-------------+---- cancel: canceled <-+-----------/
//
// Of control.Faults, deleteBusy has no counterpart here, and rateLimit and
// secondaryRateLimit are one: Buildkite has one kind of limit.
//
// The simulator has no package state. Time comes from Options.Clock.
package buildkite
