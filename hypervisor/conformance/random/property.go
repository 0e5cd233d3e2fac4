// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package random

import (
	"strconv"
	"testing"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/kit/property"
)

// Numbers of random runs: briefRuns in every test run, soakRuns in `make soak`.
const (
	briefRuns = 6
	soakRuns  = 100
)

// stepsPerRun is the length of a sequence.
const stepsPerRun = 12

// Property runs random sequences of conformance.RunSteps. Each sequence has its own hypervisor, so the property test can
// shrink a sequence that fails.
//
// Feature: hyperfleet-operator, Property 24: Provider Interface Implementation
func Property(t *testing.T, newHarness conformance.HarnessFunc[*testing.T]) {
	t.Helper()

	runs := 0

	property.Check(t, "a provider keeps its guarantees", property.Options{Runs: soakRuns, Brief: briefRuns},
		prop.ForAll(func(steps []int) string {
			runs++
			problem := "the test ended before its last step"

			t.Run(strconv.Itoa(runs), func(t *testing.T) {
				problem = conformance.RunSteps(t, newHarness, steps)
			})

			return problem
		}, gen.SliceOfN(stepsPerRun, gen.IntRange(0, conformance.MaxStep))))
}
