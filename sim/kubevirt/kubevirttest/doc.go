// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubevirttest starts simulated KubeVirts in tests.
package kubevirttest
