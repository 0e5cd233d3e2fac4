// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"regexp"
	"slices"
	"strings"
)

// minColumn is the smallest width in which the last column of a text is wrapped. Narrower columns continue below
// the columns before.
const minColumn = 24

// firstColumn is the first column of a line, with the gap after it.
var firstColumn = regexp.MustCompile(`^ *\S+(?: \S+)* {2,}`)

// Wrap breaks a line of text between words into lines of at most width characters. The lines after the first begin
// below the second column of the text, if it has columns. It breaks a word only if the word is longer than a line.
func Wrap(text string, width int) []string {
	width = max(width, 1)
	rest := []rune(text)

	if len(rest) <= width {
		return []string{text}
	}

	indent := findIndent(text, width)

	var out []string

	for len(rest) > width {
		end := width

		for i := width; i > indent; i-- {
			if rest[i] == ' ' && strings.TrimSpace(string(rest[:i])) != "" {
				end = i

				break
			}
		}

		out = append(out, strings.TrimRight(string(rest[:end]), " "))
		rest = slices.Concat([]rune(strings.Repeat(" ", indent)), []rune(strings.TrimLeft(string(rest[end:]), " ")))
	}

	return append(out, string(rest))
}

// findIndent returns the number of spaces with which the lines after the first begin.
func findIndent(text string, width int) int {
	if column := len([]rune(firstColumn.FindString(text))); column > 0 && width-column >= minColumn {
		return column
	}

	return min(len(text)-len(strings.TrimLeft(text, " ")), width/2)
}
