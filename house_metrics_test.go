// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hyperfleet_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestStepsAreDocumented checks that the page of metrics lists the names of all steps that report no condition,
// because these names are values of the label step.
func TestStepsAreDocumented(t *testing.T) {
	t.Parallel()

	page, err := os.ReadFile("docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}

	step := regexp.MustCompile(`\{Name: "(\w+)", (?:AppliesTo|Run): `)
	found := 0

	walk(t, func(path string) {
		area, _, _ := strings.Cut(filepath.ToSlash(path), "/")
		if !slices.Contains([]string{"bridge", "hosts", "networking", "runners"}, area) ||
			!strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return
		}

		code, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}

		for _, name := range step.FindAllSubmatch(code, -1) {
			found++

			if !strings.Contains(string(page), "`"+string(name[1])+"`") {
				t.Errorf("docs/reference/metrics.md does not list step %s of %s", name[1], path)
			}
		}
	})

	if found < 20 {
		t.Errorf("found %d steps, want at least 20: check the expression", found)
	}
}
