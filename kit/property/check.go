// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package property

import (
	"os"
	"testing"

	"github.com/leanovate/gopter"
)

// EnvSoak is the environment variable that enables all runs of all properties.
const EnvSoak = "HYPERFLEETTEST_SOAK"

// defaultRuns is the number of runs that document 000 requires.
const defaultRuns = 100

// Options configure how a property is checked. The zero value is for a property whose run takes
// milliseconds.
type Options struct {
	// Runs is the number of inputs. Default: 100.
	Runs int
	// Brief is the number of inputs outside of `make soak`, for properties whose run is a whole
	// lifecycle. Default: Runs. The name of the test must start with TestProperty, because `make soak`
	// selects tests by this prefix. Use prop.ForAllNoShrink for such properties, because shrinking a
	// failing input takes about a hundred additional runs.
	Brief int
	// Workers is the number of inputs that are checked in parallel. Default: 1.
	Workers int
}

// IsSoak returns whether the test runs in `make soak`.
func IsSoak() bool { return os.Getenv(EnvSoak) != "" }

// Soak skips the test outside of `make soak`. Call it in tests that take too long for `make test`.
// The name of the test must start with TestSoak, because `make soak` selects tests by this prefix.
func Soak(t testing.TB) {
	t.Helper()

	if !IsSoak() {
		t.Skip("this test runs only with make soak")
	}
}

// RunCount returns the number of inputs for this process: Brief outside of `make soak` if it is
// set, otherwise Runs.
func (o Options) RunCount() int {
	runs := o.Runs
	if runs == 0 {
		runs = defaultRuns
	}

	if o.Brief > 0 && !IsSoak() {
		return o.Brief
	}

	return runs
}

// Check checks a property and fails the test if the property does not hold.
func Check(t *testing.T, name string, options Options, holds gopter.Prop) {
	t.Helper()

	parameters := gopter.DefaultTestParameters()
	parameters.MinSuccessfulTests = options.RunCount()
	// gopter runs at least one input per worker.
	parameters.Workers = min(max(options.Workers, 1), options.RunCount())

	properties := gopter.NewProperties(parameters)
	properties.Property(name, holds)
	properties.TestingRun(t, NewReporter(t))
}
