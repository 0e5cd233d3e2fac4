// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
)

// Forms of output of commands that list.
const (
	OutputTable = "table"
	OutputJSON  = "json"
)

// CheckOutput refuses a form that there is not.
func CheckOutput(form string) error {
	if form != OutputTable && form != OutputJSON {
		return Usagef("unknown output %q: use table or json", form)
	}

	return nil
}

// JSON prints a value for programs, indented.
func JSON(out io.Writer, value any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")

	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("print: %w", err)
	}

	return nil
}

// Line makes one harmless line of a text that came from outside.
func Line(text string) string {
	return strings.Join(strings.Fields(Safe(text)), " ")
}

// Safe takes out of a text what a terminal would obey: names, messages and logs are
// whatever their authors like.
func Safe(text string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c == '\n' || c == '\t':
			return c
		case unicode.IsControl(c) || unicode.Is(unicode.Bidi_Control, c):
			return -1
		default:
			return c
		}
	}, escapes(text))
}

// escapes removes whole escape sequences (ECMA-48: ESC [ ... letter), so that the colours
// of a log don't leave their numbers behind.
func escapes(text string) string {
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
