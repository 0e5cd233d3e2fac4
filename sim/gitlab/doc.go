// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gitlab simulates the part of GitLab that hands CI jobs to runners: the REST
// API v4 for runners, jobs, projects and groups; the calls that gitlab-runner makes; and
// job events, signed in either way that GitLab has.
//
// Every request is checked: its parameters by name and type, its content type, its
// credentials' scopes and role. A breach is recorded as a control.Violation; an unknown
// path answers 501 and is a violation too. A parameter that is not known is passed over, and
// recorded.
//
// From GitLab's documentation and the parameters that its source declares: the REST API,
// its pages and links, how values are coerced, scopes and roles, limits, webhooks and their
// signatures. From what the real gitlab-runner 18.5 sends and takes, which has run whole jobs
// against this simulator in every ending: verification, requests for jobs and their long
// polling, traces, updates, and how a runner is told of a job that is over. From neither: the
// words of refusals that no documentation quotes.
//
// State of a job:
//
//	created --> pending --> running --> success, failed
//	   |           |           |
//	   v play      +---+-------+
//	manual             v
//	                canceled
//
// A pending job goes to a runner that asks, when the runner is of its project, one of its
// groups or the instance, and has all of its tags, to the letter. A job that is silent for
// too long, or runs for too long, fails.
//
// The simulator has no package state. Time comes from Options.Clock.
package gitlab
