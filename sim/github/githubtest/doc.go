// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package githubtest starts a simulated GitHub for a test on a loopback address, and fails the test
// if a caller or the simulator violates GitHub's contract.
package githubtest
