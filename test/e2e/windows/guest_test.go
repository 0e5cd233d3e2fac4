// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// notUnderWine lists the tests of package guest that do not run under Wine. The tests whose files have the build tag
// "linux" are not among them: their runners are scripts for a Unix shell, or they need SPIRE, a TPM or an account of Linux.
func notUnderWine() []string {
	return []string{
		"TestExtractRefuses/through_chained_links", // Wine creates no links
		"TestRelease", // the runner's program is a script
	}
}

// TestGuestUnderWine runs the unit tests of the bootstrap service, built for Windows.
func TestGuestUnderWine(t *testing.T) { //nolint:paralleltest // the tests share one Windows installation
	w := newWine(t)
	program := filepath.Join(folder, "guest.test.exe")
	w.goCommand("test", "-c", "-vet=off", "-o", program, "../../../guest")

	cmd := w.command(t.Context(), program, "-test.v", "-test.timeout="+wineTimeout.String())
	cmd.Dir = w.drive()

	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the tests ended with %v\n%s", err, out)
	}

	var skipped []string

	passed := 0

	for line := range strings.Lines(string(out)) {
		result, name, _ := strings.Cut(strings.TrimSpace(line), ": ")
		name, _, _ = strings.Cut(name, " ")

		switch result {
		case "--- PASS":
			passed++
		case "--- SKIP":
			skipped = append(skipped, name)
		}
	}

	slices.Sort(skipped)

	if want := notUnderWine(); !slices.Equal(skipped, want) {
		t.Errorf("tests %q were skipped, want %q", skipped, want)
	}

	if passed == 0 {
		t.Errorf("no test has passed:\n%s", out)
	}

	t.Logf("%d tests and cases passed", passed)
}
