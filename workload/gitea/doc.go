// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gitea implements the workload interfaces for Gitea Actions and Forgejo Actions. Forgejo
// is a fork of Gitea, so both have the same runner protocol and most of the API in common.
//
// Forgejo and Gitea return the Platform of each server. It resolves settings, parses webhooks and
// matches jobs with runners without making calls. Platform.Open creates the workload.Provider of
// one repository, one organization or one instance.
//
// Each machine has its own ephemeral runner, which the server removes after one job. At Forgejo the
// provider creates the runner with an API call. At Gitea it uses the call with which act_runner
// registers itself (runner.v1.RunnerService/Register, as JSON of the Connect protocol). The
// operator makes this call itself, because the registration token can register any number of
// runners and must not reach a machine.
//
// The two servers differ as follows:
//
//   - Forgejo sends no webhooks for jobs, only lists them, and gives each job a handle. A machine of
//     Forgejo is created for one job, and its runner requests the job by its handle.
//   - Gitea sends webhooks (workflow_job) and lists jobs. Both name the runner of a job.
//   - Gitea can disable a runner before it is removed, so that the runner gets no job meanwhile.
//     Forgejo cannot, but its runners take only the job that they were created for.
//   - Forgejo removes a job from its job list when the job ends. Its task list contains the result.
//
// Wire formats are as in the servers' sources (Forgejo 15, Gitea 1.27): routers/api/v1,
// modules/structs and, for webhooks, services/webhook. Forgejo is recognized by its version, which
// ends in +gitea-VERSION.
package gitea
