// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package property

import (
	"os"
	"testing"

	"github.com/leanovate/gopter"
)

// EnvSoak is set where tests have the time for every run of every property.
const EnvSoak = "HYPERFLEETTEST_SOAK"

// defaultRuns is what document 000 asks for.
const defaultRuns = 100

// Options say how a property is tried. The zero value is for a property that costs
// milliseconds.
type Options struct {
	// Runs is how many inputs are tried. Default: 100.
	Runs int
	// Brief is how many are tried outside of `make soak`, for a property whose runs are
	// whole lives. Default: Runs. The test's name has to begin with TestProperty, by which
	// `make soak` finds it. Whole lives keep an input that fails as it is (prop.ForAllNoShrink): to
	// look for a smaller one takes a hundred more.
	Brief int
	// Workers try so many inputs at the same time. Default: 1.
	Workers int
}

// Soaking says whether this is `make soak`.
func Soaking() bool { return os.Getenv(EnvSoak) != "" }

// Soak skips a test that takes too long for `make test`. Its name has to begin with
// TestSoak, by which `make soak` finds it.
func Soak(t testing.TB) {
	t.Helper()

	if !Soaking() {
		t.Skip("make soak runs it")
	}
}

// Count is how many inputs the options ask for here and now.
func (o Options) Count() int {
	runs := o.Runs
	if runs == 0 {
		runs = defaultRuns
	}

	if o.Brief > 0 && !Soaking() {
		return o.Brief
	}

	return runs
}

// Check tries a property under its name, and fails the test if it does not hold.
func Check(t *testing.T, name string, options Options, holds gopter.Prop) {
	t.Helper()

	parameters := gopter.DefaultTestParameters()
	parameters.MinSuccessfulTests = options.Count()
	// gopter gives every worker a run at least.
	parameters.Workers = min(max(options.Workers, 1), options.Count())

	properties := gopter.NewProperties(parameters)
	properties.Property(name, holds)
	properties.TestingRun(t, Reporter(t))
}
