// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package buildkitetest starts a simulated Buildkite for a test on a loopback address, and fails
// the test if a caller or the simulator violates Buildkite's contract.
package buildkitetest
