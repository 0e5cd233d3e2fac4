// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package screen_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/cmd/internal/screen"
)

func TestWrap(t *testing.T) {
	t.Parallel()

	for text, want := range map[string][]string{
		"":      {""},
		"short": {"short"},
		"exactly as wide as the terminal, 40 chars":             {"exactly as wide as the terminal, 40", "chars"},
		"Cause       no pool has all labels of the job":         {"Cause       no pool has all labels of", "            the job"},
		"  indented text is longer than the terminal":           {"  indented text is longer than the", "  terminal"},
		"https://example.com/a/very/long/path/that/is/one/word": {"https://example.com/a/very/long/path/tha", "t/is/one/word"},
		"a long first column of the line  and the second":       {"a long first column of the line  and the", "second"},
		"äöüäöüäöüäöüäöüäöü üöäüöäüöäüöäüöäüöä äöü":             {"äöüäöüäöüäöüäöüäöü üöäüöäüöäüöäüöäüöä", "äöü"},
	} {
		if diff := cmp.Diff(want, screen.Wrap(text, 40)); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
	}

	// A terminal may have any size.
	for width := range 30 {
		for _, line := range screen.Wrap("  name  a description of this name", width) {
			if len(line) > max(width, 1) {
				t.Errorf("width %d: %q is longer", width, line)
			}
		}
	}
}
