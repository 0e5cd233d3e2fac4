// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package github simulates the part of GitHub that hands CI jobs to self-hosted
// runners: the REST API for runners, jobs, Apps and webhook deliveries,
// workflow_job webhooks, and the service runners talk to.
//
// Every API request and reply is checked against GitHub's OpenAPI description,
// and every webhook against its schema there. A breach is recorded as a
// control.Violation; an unknown path answers 501 and is a violation too.
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
