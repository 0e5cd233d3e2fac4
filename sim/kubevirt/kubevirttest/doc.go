// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubevirttest starts KubeVirt simulators for tests.
package kubevirttest
