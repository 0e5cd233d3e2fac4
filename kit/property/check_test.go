// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package property_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	"github.com/hyperfleet/hyperfleet/kit/property"
)

// countRuns returns with how many inputs a property is checked.
func countRuns(t *testing.T, options property.Options) int {
	t.Helper()

	n := 0

	property.Check(t, "it holds", options, prop.ForAll(func(int) bool {
		n++

		return true
	}, gen.Int()))

	return n
}

func TestRunsOfBothTiers(t *testing.T) {
	cases := []struct {
		name        string
		options     property.Options
		brief, soak int
	}{
		{"default options", property.Options{}, 100, 100},
		{"fast runs", property.Options{Runs: 250}, 250, 250},
		{"complete lifecycles", property.Options{Brief: 7}, 7, 100},
		{"many complete lifecycles", property.Options{Runs: 300, Brief: 7}, 7, 300},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for soak, want := range map[string]int{"": c.brief, "1": c.soak} {
				t.Setenv(property.EnvSoak, soak)

				if got := countRuns(t, c.options); got != want || c.options.RunCount() != want {
					t.Errorf("%s=%q: %d runs of %d, want %d", property.EnvSoak, soak, got, c.options.RunCount(), want)
				}
			}
		})
	}
}

// skipper records whether it was skipped.
type skipper struct {
	testing.TB

	skipped bool
}

func (*skipper) Helper()       {}
func (s *skipper) Skip(...any) { s.skipped = true }

func TestSoakIsSkippedElsewhere(t *testing.T) {
	for soak, want := range map[string]bool{"": true, "1": false} {
		t.Setenv(property.EnvSoak, soak)

		s := &skipper{TB: t}
		property.Soak(s)

		if s.skipped != want || property.IsSoak() == want {
			t.Errorf("%s=%q: skipped is %t", property.EnvSoak, soak, s.skipped)
		}
	}
}

// failing is the environment variable that makes TestAPropertyThatFails run its body.
const failing = "HYPERFLEET_TEST_FAILING_PROPERTY"

// TestAPropertyThatFails runs only in the process that TestCheckFailsItsTest starts.
func TestAPropertyThatFails(t *testing.T) {
	if os.Getenv(failing) == "" {
		return
	}

	property.Check(t, "numbers are small", property.Options{}, prop.ForAll(
		func(n int) bool { return n < 100 }, gen.Const(800).WithShrinker(gen.IntShrinker)))
}

// A property that does not hold fails the test, and the output contains the smallest failing input.
func TestCheckFailsItsTest(t *testing.T) {
	t.Parallel()

	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAPropertyThatFails$", "-test.v")
	cmd.Env = append(os.Environ(), failing+"=yes")

	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--- FAIL: TestAPropertyThatFails") || !strings.Contains(string(out), "ARG_0: 100\n") {
		t.Errorf("process ended with %v:\n%s", err, out)
	}
}
