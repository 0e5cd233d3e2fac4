// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package conformance holds the cases that every hypervisor.Provider passes, whatever
// hypervisor is behind it. A provider's tests call Run, Crashes and Property with a Harness
// around a simulator or a real system:
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, func(t *testing.T) conformance.Harness { ... })
//	}
//
// The harness makes providers, tells what really is on the hypervisor, and lets a case
// step in at each call that reaches it.
package conformance
