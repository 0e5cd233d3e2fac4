// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gitlab implements the workload interfaces for GitLab CI: gitlab.com, GitLab Self-Managed
// and GitLab Dedicated.
//
// Platform resolves settings, parses webhooks and matches jobs with runners without making calls.
// New creates the workload.Provider of one project, one group or one instance. For each machine,
// the provider creates a runner with POST /user/runners.
//
// GitLab differs from other platforms as follows:
//
//   - A job's webhook does not contain the job's tags. Such a job has LabelsUnknown set, and
//     Provider.GetJob returns its tags.
//   - A runner has no name, and runner lists contain no tags. The operator therefore writes the
//     runner's name and the ownership label, in parentheses, into the runner's description:
//     build-1 (hf-op-1a2b3c).
//   - GitLab shows a runner as online for two hours after its last contact.
//   - GitLab also removes a busy runner. Deregister therefore pauses the runner first, so that it gets
//     no further job, and then checks whether it runs one.
//   - If a pool's projectId or groupId is a number, every job of its server counts as in scope,
//     because jobs contain paths and no such ids. If several pools share tags, use paths.
//
// Calls use GitLab's own client library, gitlab.com/gitlab-org/api/client-go, for paths, parameters
// and paging. This package handles retries, rate limits and secrets itself.
//
// Wire formats are as in the REST API v4 (https://docs.gitlab.com/api/runners/,
// https://docs.gitlab.com/api/jobs/) and of job events
// (https://docs.gitlab.com/user/project/integrations/webhook_events/#job-events).
package gitlab
