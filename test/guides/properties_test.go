// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guides_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const (
	// lastProperty is the number of the last property in the requirements document.
	lastProperty = 27
	// minRuns is the number of runs that the document requires of the test of each property.
	minRuns = 100
)

// TestPropertiesAreTested checks that every property is in the table, with its title, and that its tests exist, have its tag,
// and have enough runs.
func TestPropertiesAreTested(t *testing.T) {
	t.Parallel()

	const dir = "../../docs/reference"

	raw, err := os.ReadFile(filepath.Join(dir, "properties.md"))
	if err != nil {
		t.Fatal(err)
	}

	row := regexp.MustCompile(`(?m)^\| (\d+) \| ([^|]+) \| (.*) \|$`)
	link := regexp.MustCompile(`\[(Test\w+)\]\(([^)#]+)#(Test\w+)\)`)
	next := 1

	for _, found := range row.FindAllStringSubmatch(string(raw), -1) {
		number, title, tests := found[1], found[2], link.FindAllStringSubmatch(found[3], -1)
		if number != strconv.Itoa(next) {
			t.Fatalf("property %d is missing: the next row is %s", next, number)
		}

		next++

		if len(tests) == 0 {
			t.Errorf("property %s, %s, has no test", number, title)
		}

		for _, test := range tests {
			source, err := os.ReadFile(filepath.Join(dir, test[2]))
			if err != nil || test[1] != test[3] || !hasTag(string(source), number, title, test[1]) {
				t.Errorf("property %s: there is no %s in %s with the tag %q", number, test[1], test[2], formatTag(number, title))
			}

			for _, runs := range findFewRuns(string(source)) {
				t.Errorf("property %s: %s has a property with %s runs, want at least %d", number, test[2], runs, minRuns)
			}
		}
	}

	if next != lastProperty+1 {
		t.Errorf("the table ends before property %d", next)
	}
}

// formatTag returns the tag in a test's comment.
func formatTag(number, title string) string {
	return fmt.Sprintf("// Feature: hyperfleet-operator, Property %s: %s", number, title)
}

// hasTag returns true if a test's comment has the property's tag.
func hasTag(source, number, title, test string) bool {
	before, _, found := strings.Cut(source, "\nfunc "+test+"(")
	comment := before[strings.LastIndex(before, "\n\n")+1:]

	for line := range strings.Lines(comment + "\n") {
		if found && strings.TrimRight(line, ".\n") == formatTag(number, title) {
			return true
		}
	}

	return false
}

// findFewRuns returns the numbers of runs in a file (property.Options) that are lower than minRuns. A number is a literal
// or a constant of the file.
func findFewRuns(source string) []string {
	var few []string

	for _, found := range regexp.MustCompile(`\bRuns(?::| =) *(\w+)`).FindAllStringSubmatch(source, -1) {
		value := found[1]
		if constant := regexp.MustCompile(`\b` + value + ` += (\d+)`).FindStringSubmatch(source); constant != nil {
			value = constant[1]
		}

		if runs, err := strconv.Atoi(value); err != nil || runs < minRuns {
			few = append(few, found[1])
		}
	}

	return few
}

func TestFewRunsAreFound(t *testing.T) {
	t.Parallel()

	for source, want := range map[string]int{
		"property.Options{Brief: 5}": 0, "property.Options{Runs: 100}": 0, "property.Options{Brief: 5, Runs: 99}": 1, "o.Runs = 40": 1,
		"const runs = 200\nproperty.Options{Runs: runs}": 0, "const runs = 20\nproperty.Options{Runs: runs}": 1,
		"property.Options{Runs: count()}": 1,
	} {
		if got := findFewRuns(source); len(got) != want {
			t.Errorf("%s: %v, want %d", source, got, want)
		}
	}
}
