// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package workload defines what the runners area needs from a CI platform. The packages below it
// implement the interfaces for one platform each: github, gitlab, buildkite, gitea (Gitea and
// Forgejo) and generic.
//
// A Provider serves one scope (a repository, an organization, an enterprise or an instance) with
// one set of credentials. A WebhookParser needs neither a scope nor credentials.
package workload
