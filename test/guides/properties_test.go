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

// lastProperty is the number of the last property in the requirements document.
const lastProperty = 27

// TestPropertiesAreTested checks that every property is in the table, with its title, and that its tests exist and
// have its tag.
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
