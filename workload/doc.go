// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package workload is the boundary to CI platforms: what a platform must do for the
// runners area, and nothing about how.
//
// A Provider serves one scope (a repository or an organisation) with one set of
// credentials. Receivers of webhooks need neither: see WebhookParser.
package workload
