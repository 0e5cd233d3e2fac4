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

// Every "yes" of the feature table links to a test that is there.
func TestFeaturesAreTested(t *testing.T) {
	t.Parallel()

	const dir = "../../docs/reference"

	raw, err := os.ReadFile(filepath.Join(dir, "features.md"))
	if err != nil {
		t.Fatal(err)
	}

	link := regexp.MustCompile(`^\[yes\]\(([^)#]+)#(Test\w+)\)$`)
	rows := 0

	for line := range strings.Lines(string(raw)) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 || strings.TrimSpace(cells[1]) == "feature" || strings.HasPrefix(cells[1], "---") {
			continue
		}

		rows++
		said := strings.TrimSpace(cells[2])

		if strings.HasPrefix(said, "no") || strings.HasPrefix(said, "part: ") {
			continue
		}

		found := link.FindStringSubmatch(said)
		if found == nil {
			t.Errorf("%s: %q is neither a link to a test, nor no, nor part", strings.TrimSpace(cells[1]), said)

			continue
		}

		source, err := os.ReadFile(filepath.Join(dir, found[1]))
		if err != nil || !strings.Contains(string(source), "func "+found[2]+"(") {
			t.Errorf("%s: there is no test %s in %s", strings.TrimSpace(cells[1]), found[2], found[1])
		}
	}

	if rows < 30 {
		t.Errorf("the table has %d rows", rows)
	}
}
