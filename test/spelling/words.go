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
		`goes? by (itself|themselves)`:           "say who deletes it",
		`(has|have|had|is|are|be|was) on record`: "is recorded in status",
		`gives? leave|needs? leave`:              "permission",
		`passes over`:                            "skips",
		`\bWho(ever)? may\b`:                     "anyone who can",
		`strangers?\b`:                           "others, untrusted",
		`(is|are|was|were) away\b`:               "is unavailable",
		`the world\b`:                            "fixture, environment",
		`\bcadence`:                              "resync period, interval",
		`\bgoes on\b`:                            "continues",
		`\bof ours\b`:                            "our",
		`(is|are|was|were) asked for\b`:          "say who requests what",
		`\bin vain\b`:                            "say what failed",
		`\bfor (good|ever)\b`:                    "permanently, forever",
		`\bin the midst\b`:                       "during, in the middle of",
		`\bnobody knows\b`:                       "is unknown",
		`\bof equals\b`:                          "if several are equal",
		`\bwithout a word\b`:                     "without an error",
		`\banew\b`:                               "again",
		`\bpasse[sd] on\b`:                       "forwards, copies",
		`\b[Ss]tand-ins?\b`:                      "simulated",
	}
}

// unclearNames finds variables whose name is a word for what somebody says or hears, and not for the value.
var unclearNames = regexp.MustCompile(`(?m)^\s*(?:var |for |if |switch )?(?:\w+, )*` +
	`(told|said|says|news|world|stranger|heard|hears|asked|standing)(?:, \w+)* (?::?= )`)

// CheckNames fails the test for each variable of a file of Go code, a test or not, that has an unclear name.
func CheckNames(t *testing.T, name string, text []byte) {
	t.Helper()

	for _, at := range unclearNames.FindAllSubmatchIndex(text, -1) {
		line := 1 + bytes.Count(text[:at[2]], []byte("\n"))
		t.Errorf("%s:%d: %q: name the variable after what it contains", name, line, text[at[2]:at[3]])
	}
}

// NewWordCheck returns a check that finds expressions to avoid in a page or a file of Go code.
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
