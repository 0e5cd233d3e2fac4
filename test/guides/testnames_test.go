// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guides_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// testLink matches a link to a test in a table. hack/site checks that the targets of links exist.
var testLink = regexp.MustCompile(`\[(\w+)\]\([^)#]+_test\.go#(Test\w+)\)`)

// TestTablesNameTests checks that each existing feature and each kind of invalid input in the tables has a test.
func TestTablesNameTests(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		// from and until are the texts before and after the tables.
		from, until string
		cell        int
		// word is the text of a link to a test. If it is "", the text is the name of the test.
		word string
		rows int
	}{
		"features.md":  {"\n", "\x00", 2, "yes", 30},
		"addresses.md": {"## Bad input", "\n## ", 3, "", 15},
	} {
		_, table, _ := strings.Cut(readFile(t, filepath.Join("..", "..", "docs", "reference", name)), tc.from)
		table, _, _ = strings.Cut(table, tc.until)
		rows := 0

		for line := range strings.Lines(table) {
			cells := strings.Split(line, "|")
			if len(cells) <= tc.cell || slices.Contains([]string{"---", "feature", "Input"}, strings.TrimSpace(cells[1])) {
				continue
			}

			rows++
			text := strings.TrimSpace(cells[tc.cell])

			if tc.word != "" && (strings.HasPrefix(text, "no") || strings.HasPrefix(text, "part: ")) {
				continue
			}

			found := testLink.FindStringSubmatch(text)
			if len(found) < 3 || found[1] != tc.word && found[1] != found[2] {
				t.Errorf("%s, %s: %q has no link to a test", name, strings.TrimSpace(cells[1]), text)
			}
		}

		if rows < tc.rows {
			t.Errorf("%s: the table has only %d rows", name, rows)
		}
	}
}

// TestThreatModelTestsExist checks that each test that the threat model links to exists.
func TestThreatModelTestsExist(t *testing.T) {
	t.Parallel()

	const dir = "../../docs/guides/"

	raw, err := os.ReadFile(dir + "threat-model.md")
	if err != nil {
		t.Fatal(err)
	}

	found := regexp.MustCompile(`\[(Test\w+)\]\(([^)#]+)\)`).FindAllStringSubmatch(string(raw), -1)

	// A test with the same name in several files.
	link := regexp.MustCompile(`\[[^\]]+\]\(([^)#]+)\)`)
	several := regexp.MustCompile(`(Test\w+) of ((?:\[[^\]]+\]\([^)]+\)(?:, | and )?)+)`)

	for _, one := range several.FindAllStringSubmatch(string(raw), -1) {
		for _, file := range link.FindAllStringSubmatch(one[2], -1) {
			found = append(found, []string{"", one[1], file[1]})
		}
	}

	if len(found) < 15 {
		t.Errorf("the threat model has only %d tests", len(found))
	}

	for _, test := range found {
		source, err := os.ReadFile(dir + test[2])
		if err != nil || !strings.Contains(string(source), "\nfunc "+test[1]+"(t *testing.T) {") {
			t.Errorf("there is no %s in %s: %v", test[1], test[2], err)
		}
	}
}
