// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gitea simulates the part of Gitea, or of Forgejo, that hands jobs of Actions to
// runners: the REST API v1 for runners, jobs and tasks of repositories, organisations and
// the instance; the calls that act_runner and forgejo-runner make; and Gitea's webhook
// workflow_job.
//
// Every request is checked: its parameters and fields by name, its content type, its
// credentials' scopes. A breach is recorded as a control.Violation; an unknown path answers
// 501 and is a violation too. A parameter that is not known is passed over, and recorded.
//
// From the servers' sources (Gitea 1.27, Forgejo 15) and their API descriptions: paths,
// scopes, the shapes of runners, jobs, tasks and webhooks, pages, how runners are matched,
// disabled, and removed after their one job. From the sources of the runner programs
// (gitea-runner 3, forgejo-runner 12 and 13): their calls, and the lines that the stand-ins
// in simrunner print. No real program has run against it: the calls of runners are served in
// the JSON form of the Connect protocol alone, and the real ones use protocol buffers. From
// neither: the words of refusals that the sources do not have.
//
// State of a job, in Forgejo's words and in Gitea's where they differ:
//
//	blocked (waiting) --> waiting (queued) --> running (in_progress) --> success, failure
//	    |                     |                     |
//	    +---------------------+---------------------+--> cancelled
//
// A waiting job goes to a runner that asks, when the runner is of its repository, its
// repository's owner or the instance, and has all of its labels, to the letter; at Forgejo
// also by its handle. A job that is silent for too long fails.
//
// The simulator has no package state. Time comes from Options.Clock.
package gitea
