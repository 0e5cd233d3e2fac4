// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package conformance contains the test cases that every hypervisor.Provider must pass. A
// provider's tests call Run, RunCrashes and Property of package random with a Harness for a simulator
// or a real hypervisor:
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, func(t *testing.T) conformance.Harness { ... })
//	}
//
// The harness creates providers, reports the real state of the hypervisor, and runs a function of
// the case at each call that reaches the hypervisor.
package conformance
