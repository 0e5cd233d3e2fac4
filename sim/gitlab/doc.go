// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gitlab simulates the part of GitLab that assigns CI jobs to runners: the REST API v4 for
// runners, jobs, projects and groups; the calls of gitlab-runner; and job events with both kinds of
// GitLab's signatures.
//
// The simulator validates every request: the names and types of its parameters, its content type,
// and the scopes and role of its credential. It records each violation as a control.Violation. A
// request to an unknown path is a violation too, and its response is 501. The simulator ignores an
// unknown parameter, and records it as a violation.
//
// The behaviour of the simulator has these sources:
//
//   - GitLab's documentation and the parameters that its source declares: the REST API with its pages
//     and links, the conversion of values, scopes and roles, limits, and webhooks with their
//     signatures.
//   - The requests and responses of the real gitlab-runner 18.5, which has run whole jobs against this
//     simulator with every result: verification, requests for jobs with long polling, traces, updates,
//     and how a runner learns that a job has ended.
//   - Neither: the texts of errors that the documentation does not quote.
//
// State of a job:
//
//	created --> pending --> running --> success, failed
//	   |           |           |
//	   v play      +---+-------+
//	manual             v
//	                canceled
//
// A runner that requests a job receives a pending job if the runner belongs to the job's project,
// to one of its groups or to the instance, and has all tags of the job (the case matters). A
// running job fails if its runner makes no calls for too long, or if it runs for too long.
//
// The simulator has no package state. Options.Clock is the source of the current time.
package gitlab
