// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershifttest

import (
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/hypershift"
)

// New starts a Sim and ends it when the test ends. The test fails if a client made
// something that HyperShift or MetalLB does not take, or if the Sim itself met an error.
// Make the namespaces first: what is cleaned up last is made first.
func New(t testing.TB, options hypershift.Options) *hypershift.Sim {
	t.Helper()

	sim, err := hypershift.Start(options)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := sim.Close(); err != nil {
			t.Errorf("close HyperShift: %v", err)
		}

		for _, v := range sim.Violations() {
			t.Errorf("hypershift: violation: %s: %s", v.Object, v.What)
		}

		for _, err := range sim.Problems() {
			t.Errorf("hypershift: %v", err)
		}
	})

	return sim
}
