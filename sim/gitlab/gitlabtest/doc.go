// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gitlabtest starts a simulated GitLab for a test on a loopback address, and fails the test
// if a caller or the simulator violates GitLab's contract.
package gitlabtest
