// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gitea is the workload boundary for Gitea Actions and Forgejo Actions, whose
// servers have a past, a protocol of runners and most of an API in common.
//
// Forgejo and Gitea give the Platform of each, which reads settings and webhooks and holds
// the rules by which jobs go to runners; it is pure. Platform.Open makes the
// workload.Provider of one repository, one organisation or one instance.
//
// Each machine has a runner of its own that the server removes after one job: an ephemeral
// one. Forgejo makes it by a call of its API. Gitea makes it by the call with which
// act_runner registers itself (runner.v1.RunnerService/Register, in JSON as the Connect
// protocol has it); the operator makes that call, so that the registration token, which is
// good for any number of runners, never reaches a machine.
//
// What differs between the two:
//
//   - Forgejo tells of jobs when it is asked alone, and gives each a handle. A machine of
//     Forgejo is made for one job, whose handle its runner asks for.
//   - Gitea sends webhooks (workflow_job) and lists jobs. Which runner has a job it says.
//   - Gitea can disable a runner before it is removed, so that it gets no job meanwhile.
//     Forgejo cannot, but its runners take the one job that they are for.
//   - Forgejo's list of jobs ends when a job does: how it ended is in its list of tasks.
//
// Wire formats are those of the servers' sources (Forgejo 15, Gitea 1.27):
// routers/api/v1, modules/structs and, for webhooks, services/webhook. Forgejo is known by
// its version, which ends in +gitea-VERSION.
package gitea
