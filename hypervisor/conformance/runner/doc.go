// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package runner runs the cases of package conformance in a program, as `go test` runs them in a
// test: a case that calls Parallel waits until its parent's function has returned, and Fatal ends
// only its own case.
package runner
