// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package contracts tests the deployed manifests against a real API server: the validation and defaults of
// the CRDs, the samples, the permissions, and the Deployment.
package contracts
