// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package example_test

import (
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/hypervisor/example"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, newHarness)
}

func TestCrashes(t *testing.T) {
	t.Parallel()
	conformance.RunCrashesAtEveryCall(t, newHarness)
}

// newHarness returns the harness of a new cloud for one case.
func newHarness(t *testing.T) conformance.Harness {
	t.Helper()

	calls := &conformance.CallHooks{}
	cloud := example.NewCloud("")
	cloud.OnCall = func(operation string, before bool) {
		calls.Run(conformance.Boundary{Before: before, Write: true, Call: operation})
	}

	return example.NewHarness(cloud, calls)
}
