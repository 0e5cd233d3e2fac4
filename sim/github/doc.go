// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package github simulates the part of GitHub that hands CI jobs to self-hosted
// runners: the REST API for runners, jobs, Apps and webhook deliveries,
// workflow_job webhooks, and the service runners talk to.
//
// Every API request and reply is checked against GitHub's OpenAPI description,
// and every webhook against its schema there. A breach is recorded as a
// control.Violation; an unknown path answers 501 and is a violation too. Fields of
// a body that the description does not have are passed over, as GitHub does; the
// Actions service's are recorded as well, since there is no description of it.
//
// From GitHub's documentation and its OpenAPI description: the REST API with its
// rights, limits, pages and links, Apps and their tokens, webhooks and their
// deliveries. From what GitHub's own client of scale sets (actions/scaleset
// v0.4.0) sends and takes, which is a contract test here: the Actions service's
// paths, what a set, a session, a message and a runner look like, that an update
// names what changes alone, and the exceptions that it tells apart. From what
// runners' managers in use rely on: that an Enterprise Server's links are its own
// (Options.URL). From neither: when a job is assigned again, how long sessions
// live, the words of exceptions, and the protocol of runners (package protocol),
// which is the simulator's own.
//
// State of a job:
//
//	          approve              pickup            finish
//	waiting ----------> queued <----------> in_progress --------> completed
//	(environment)         ^   60 s unclaimed     |
//	                      +--- assigned ---------+ lost: completed, failure
//
// The simulator has no package state. Time comes from Options.Clock.
package github
