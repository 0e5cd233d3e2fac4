// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"unicode"
)

// SanitizeLine sanitizes untrusted text and joins it to one line.
func SanitizeLine(text string) string {
	return strings.Join(strings.Fields(Sanitize(text)), " ")
}

// Sanitize removes escape sequences, bidirectional control characters, and all control characters other than
// newline and tab. A terminal would interpret them, and names, messages and logs are untrusted.
func Sanitize(text string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c == '\n' || c == '\t':
			return c
		case unicode.IsControl(c) || unicode.Is(unicode.Bidi_Control, c):
			return -1
		default:
			return c
		}
	}, removeEscapes(text))
}

// removeEscapes removes complete escape sequences (ECMA-48: ESC [ ... letter), so that the numbers in a
// color sequence do not remain in the text.
func removeEscapes(text string) string {
	var out strings.Builder

	for {
		before, rest, found := strings.Cut(text, "\x1b[")
		out.WriteString(before)

		if !found {
			return out.String()
		}

		end := strings.IndexFunc(rest, func(c rune) bool { return c < ' ' || c >= '@' && c <= '~' })
		if end < 0 {
			return out.String()
		}

		if rest[end] >= '@' {
			end++
		}

		text = rest[end:]
	}
}
