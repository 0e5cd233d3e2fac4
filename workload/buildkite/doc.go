// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package buildkite implements the workload interfaces for Buildkite.
//
// Each agent is started for one job, which it acquires by the job's id (buildkite-agent start
// --acquire-job). The provider is a stack of Buildkite's Stacks API
// (https://buildkite.com/docs/apis/agent-api/stacks). It lists the queued jobs of one queue of a
// cluster, reserves a job, and gets a job acquisition token for it
// (https://buildkite.com/docs/agent/self-hosted/tokens). Only this token reaches the machine. With
// it, one agent can register for that job only, and the token expires with the reservation.
//
// The Stacks API does not list agents. The provider therefore derives the state of a runner from
// the state of its job: see FindRunner and Deregister. The provider never finishes or fails a job.
// If a job's machine does not start, Buildkite puts the job back into its queue when the
// reservation expires.
//
// Buildkite shows a queue as disconnected if nothing listed its jobs for about 30 seconds, so
// ListJobs must be called more often than that.
//
// Webhooks are as in https://buildkite.com/docs/apis/webhooks/pipelines/job-events.
//
// This package has its own client because github.com/buildkite/stacksapi at v1.0.2 has no call for
// job acquisition tokens, does not decode cluster_queue.dispatch_paused, and puts whole responses
// into error texts.
package buildkite
