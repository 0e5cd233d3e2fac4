// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package buildkite is the workload boundary for Buildkite.
//
// An agent is made for one job, which it acquires by its id (buildkite-agent start
// --acquire-job). The provider is a stack of Buildkite's Stacks API
// (https://buildkite.com/docs/apis/agent-api/stacks): it lists the jobs that wait in one
// queue of a cluster, reserves one, and gets a job acquisition token for it
// (https://buildkite.com/docs/agent/self-hosted/tokens), which is all that ever reaches a
// machine: it registers one agent for that job alone, and ends with the reservation.
//
// The Stacks API lists no agents. What is said of a runner is therefore what Buildkite
// says of its job: see Find and Deregister. A job is never finished or failed here; one
// whose machine never came goes back to its queue when its reservation lapses.
//
// Buildkite shows a queue as disconnected when it was not asked for jobs for about 30
// seconds, so Jobs wants to be called more often than that.
//
// Webhooks are those of https://buildkite.com/docs/apis/webhooks/pipelines/job-events.
//
// The client is our own: github.com/buildkite/stacksapi at v1.0.2 has no call for job
// acquisition tokens, does not read cluster_queue.dispatch_paused, and puts whole answers
// into error texts.
package buildkite
