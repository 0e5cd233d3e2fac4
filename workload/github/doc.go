// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package github implements the workload interfaces for GitHub Actions: github.com, GitHub
// Enterprise Cloud and GitHub Enterprise Server.
//
// New creates the workload.Provider of one repository, organization or enterprise. It authenticates
// as an installation of a GitHub App or with a personal access token. The provider also polls for
// jobs and requests redeliveries of failed webhooks. Webhooks parses workflow_job webhooks. It
// makes no calls and needs no provider. MergeLabels and ResolveScope are rules that claims, pools
// and templates share.
//
// GitHub limits the calls of a credential per hour and per minute, and its concurrent calls. The
// providers of one Platform share a budget per credential (budget.go). When few calls are left,
// polls stop first, reading single jobs slows down, and removing runners continues until no call is
// left.
//
// Wire formats are as in the REST API version 2022-11-28 (https://docs.github.com/rest/actions)
// and of the webhook workflow_job
// (https://docs.github.com/webhooks/webhook-events-and-payloads#workflow_job).
package github
