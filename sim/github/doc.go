// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package github simulates the part of GitHub that assigns CI jobs to self-hosted runners: the REST
// API for runners, jobs, Apps and webhook deliveries, workflow_job webhooks, and the service that
// runners call.
//
// The simulator validates every API request and response against GitHub's OpenAPI description, and
// every webhook against its schema in the description. It records each violation as a
// control.Violation. A request to an unknown path is a violation too, and its response is 501. Like
// GitHub, the simulator ignores the fields of a body that the description does not have. The
// Actions service has no description. Unknown fields in requests to it are violations.
//
// The behaviour of the simulator has these sources:
//
//   - GitHub's documentation and its OpenAPI description: the REST API with its permissions, limits,
//     pages and links; Apps and their tokens; webhooks and their deliveries.
//   - GitHub's own client of scale sets (actions/scaleset v0.4.0), which a contract test of this
//     package runs: the paths of the Actions service; the fields of a set, a session, a message and a
//     runner; that an update holds only the changed fields; the exceptions that the client
//     distinguishes.
//   - Programs in use that manage runners: that the links of an Enterprise Server have the URL of the
//     server (Options.URL).
//   - None of these: when a job is assigned again, how long sessions last, the texts of exceptions,
//     and the protocol of runners (package protocol), which is the simulator's own.
//
// State of a job:
//
//	          approve              pickup            finish
//	waiting ----------> queued <----------> in_progress --------> completed
//	(environment)         ^   60 s unclaimed     |
//	                      +--- assigned ---------+ lost: completed, failure
//
// The simulator has no package state. Options.Clock is the source of the current time.
package github
