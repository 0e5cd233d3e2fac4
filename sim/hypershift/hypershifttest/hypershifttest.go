// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershifttest

import (
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/hypershift"
)

// New starts a Sim and stops it when the test ends. The test fails if a client created an object that
// HyperShift or MetalLB rejects, or if the Sim itself had an error. Create namespaces before you call
// New: tests clean up in reverse order, and the Sim must stop before the namespaces are deleted.
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
			t.Errorf("hypershift: violation: %s: %s", v.Object, v.Message)
		}

		for _, err := range sim.Problems() {
			t.Errorf("hypershift: %v", err)
		}
	})

	return sim
}
