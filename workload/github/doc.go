// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package github is the workload boundary for GitHub Actions: github.com, GitHub
// Enterprise Cloud and GitHub Enterprise Server.
//
// New makes the workload.Provider of one repository, organisation or enterprise,
// authenticated as an installation of a GitHub App or by a personal access token. It also
// polls for jobs and asks for failed webhooks again. Webhooks reads workflow_job webhooks;
// it is pure and needs no provider. RunnerLabels and ScopeOf are the rules that a claim, a
// pool and a template share.
//
// GitHub limits what a credential may do in an hour, in a minute and at once. Providers of
// one Platform share a budget by credential (budget.go): what looks for missed jobs stops
// first, asking for single jobs slows down, and removing runners goes on to the last call.
//
// Wire formats are those of the REST API version 2022-11-28
// (https://docs.github.com/rest/actions) and of the webhook workflow_job
// (https://docs.github.com/webhooks/webhook-events-and-payloads#workflow_job).
package github
