// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"strings"
	"unicode"
)

var linkText = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)

// slug returns the anchor that GitHub generates for a heading.
func slug(heading string) string {
	heading = linkText.ReplaceAllString(strings.TrimSpace(heading), "$1")

	return strings.Map(func(c rune) rune {
		switch {
		case c == ' ' || c == '-':
			return '-'
		case c == '_' || unicode.IsLetter(c) || unicode.IsNumber(c):
			return unicode.ToLower(c)
		default:
			return -1
		}
	}, heading)
}
