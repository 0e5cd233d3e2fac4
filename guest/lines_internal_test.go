// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"strings"
	"testing"
)

// TestCutLines checks that a line that is cut in the middle of a character ends with the character before it. On Windows,
// such a line would otherwise be read in the code page of the console.
func TestCutLines(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct{ in, want string }{
		"too long":      {"a" + strings.Repeat("\u00fc", maxLineBytes) + "\n", "a" + strings.Repeat("\u00fc", maxLineBytes/2-1)},
		"not too long":  {"f\u00fcr\n", "f\u00fcr"},
		"without end":   {"10 \u20ac, 20 \xe2\x82", "10 \u20ac, 20 "},
		"whole":         {"20 \u20ac", "20 \u20ac"},
		"no characters": {"\xe2", ""},
	} {
		var got []string

		w := &lineWriter{redactor: &redactor{}, handle: func(line string) { got = append(got, line) }}

		if _, err := w.Write([]byte(test.in)); err != nil {
			t.Fatal(err)
		}

		w.flush()

		if len(got) != 1 || got[0] != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
