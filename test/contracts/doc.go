// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package contracts holds tests of what is deployed: the kinds' validation and
// defaults, the samples, the permissions and the Deployment, each against a real API
// server.
package contracts
