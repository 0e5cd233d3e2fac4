// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gitlab is the workload boundary for GitLab CI: gitlab.com, GitLab Self-Managed
// and GitLab Dedicated.
//
// Platform reads settings and webhooks and holds the rules by which GitLab gives jobs to
// runners; it is pure. New makes the workload.Provider of one project, one group or one
// instance, which makes a runner of its own for each machine by POST /user/runners.
//
// What differs from other platforms:
//
//   - A job's webhook does not tell its tags: such jobs have LabelsUnknown, and
//     Provider.Job tells them.
//   - A runner has no name, and listings tell no tags. A runner's description is its name,
//     and the operator's mark in brackets: build-1 (hf-op-1a2b3c).
//   - GitLab counts a runner as online for two hours after it was last heard of.
//   - GitLab removes a busy runner without asking. Deregister pauses it first, so that it
//     gets no further job, and then looks whether it has one.
//   - A pool whose projectId or groupId is a number is taken to cover every job of its
//     server, for jobs bear paths: write the path where several pools share tags.
//
// Calls go through GitLab's own client library, gitlab.com/gitlab-org/api/client-go, which
// knows paths, parameters and paging; retries, limits and secrets are seen to here.
//
// Wire formats are those of the REST API v4 (https://docs.gitlab.com/api/runners/,
// https://docs.gitlab.com/api/jobs/) and of job events
// (https://docs.gitlab.com/user/project/integrations/webhook_events/#job-events).
package gitlab
