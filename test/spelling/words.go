// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package spelling

import (
	"bytes"
	"regexp"
	"testing"
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

// NewWordCheck returns a check of a page, or of a file of Go code, for expressions to avoid.
func NewWordCheck() func(t *testing.T, name string, text []byte) {
	rules := map[*regexp.Regexp]string{}
	for expression, better := range avoided() {
		rules[regexp.MustCompile(expression)] = better
	}

	return func(t *testing.T, name string, text []byte) {
		t.Helper()

		for rule, better := range rules {
			for _, at := range rule.FindAllIndex(text, -1) {
				t.Errorf("%s:%d: %q: write %s", name, 1+bytes.Count(text[:at[0]], []byte("\n")), text[at[0]:at[1]], better)
			}
		}
	}
}
