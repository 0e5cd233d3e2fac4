// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package spelling

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	root     = "../.."
	glossary = "docs/reference/glossary.md"
	maxTerms = 40
)

// avoided are expressions that the field's engineers do not use, with what they say instead. The terms to use
// are those of the glossary.
func avoided() map[string]string {
	return map[string]string{
		`tells? of`:                              "reports, logs or returns",
		`hears? of`:                              "is notified of",
		`what became of`:                         "the outcome of",
		`(is|are|was|were) set aside`:            "is excluded",
		`growing pauses`:                         "back-off",
		`(is|are|was|were) told\b`:               "say who reports what to whom",
		`looks? (at|for) (it|them) again`:        "reconcile again, or poll",
		`made anew`:                              "recreated",
		`goes? by (itself|themselves)`:           "say who deletes it",
		`(has|have|had|is|are|be|was) on record`: "is recorded in status",
		`gives? leave|needs? leave`:              "permission",
		`passes over`:                            "skips",
		`\bWho(ever)? may\b`:                     "anyone who can",
		`strangers?\b`:                           "others, untrusted",
		`(is|are|was|were) away\b`:               "is unavailable",
		`the world\b`:                            "fixture, environment",
		`\bcadence`:                              "resync period, interval",
	}
}

// TestGlossary: pages and code use the field's words, and the glossary is short enough to be read.
func TestGlossary(t *testing.T) {
	t.Parallel()

	page, err := os.ReadFile(filepath.Join(root, glossary))
	if err != nil {
		t.Fatal(err)
	}

	terms := 0

	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| Term ") {
			terms++
		}
	}

	if terms == 0 || terms > maxTerms {
		t.Errorf("%s has %d terms, want 1 to %d", glossary, terms, maxTerms)
	}

	rules := map[*regexp.Regexp]string{}
	for expression, better := range avoided() {
		rules[regexp.MustCompile(expression)] = better
	}

	for _, name := range texts(t) {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}

		for rule, better := range rules {
			for _, at := range rule.FindAllIndex(data, -1) {
				line := 1 + strings.Count(string(data[:at[0]]), "\n")
				t.Errorf("%s:%d: %q: write %s", name, line, data[at[0]:at[1]], better)
			}
		}
	}
}

// texts returns the names of the pages, and of the Go files that are neither tests nor generated.
func texts(t *testing.T) []string {
	t.Helper()

	var out []string

	skipped := []string{"bin", "dist", ".git", "testdata", "test", "adr", "node_modules"}

	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}

		if entry.IsDir() {
			if slices.Contains(skipped, entry.Name()) {
				return fs.SkipDir
			}

			return nil
		}

		relative, err := filepath.Rel(root, name)
		isCode := strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(entry.Name(), "zz_")

		// The changelog quotes what former releases said.
		if isCode || strings.HasSuffix(name, ".md") && relative != "CHANGELOG.md" {
			out = append(out, relative)
		}

		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	if len(out) == 0 {
		t.Fatal("no pages and no code were found")
	}

	return out
}
