// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guides_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// badInputs is how many kinds of bad input the reference of addresses has at least.
const badInputs = 15

// Each kind of bad input has tests, and they are where the table says.
func TestBadAddressesAreTested(t *testing.T) {
	t.Parallel()

	const dir = "../../docs/reference"

	raw, err := os.ReadFile(filepath.Join(dir, "addresses.md"))
	if err != nil {
		t.Fatal(err)
	}

	_, table, _ := strings.Cut(string(raw), "## Bad input")
	table, _, _ = strings.Cut(table, "\n## ")
	row := regexp.MustCompile(`(?m)^\| ([^|]+) \| [^|]+ \| (\[.*) \|$`)
	link := regexp.MustCompile(`\[(Test\w+)\]\(([^)#]+)#(Test\w+)\)`)
	rows := row.FindAllStringSubmatch(table, -1)

	if len(rows) < badInputs {
		t.Errorf("the table has %d rows with tests", len(rows))
	}

	for _, found := range rows {
		tests := link.FindAllStringSubmatch(found[2], -1)
		if len(tests) == 0 {
			t.Errorf("%s has no test", found[1])
		}

		for _, test := range tests {
			source, err := os.ReadFile(filepath.Join(dir, test[2]))
			if err != nil || test[1] != test[3] || !strings.Contains(string(source), "\nfunc "+test[1]+"(t *testing.T) {") {
				t.Errorf("%s: there is no %s in %s: %v", found[1], test[1], test[2], err)
			}
		}
	}
}
