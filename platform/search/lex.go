// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package search

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// maxLength is the maximum length of a condition in bytes, as in the OpenAPI document.
const maxLength = 4096

// Error describes an error in a condition or an order, and its position.
type Error struct {
	// Column is the position of the wrong character, counted in characters from 1.
	Column int
	// Message describes the error.
	Message string
}

// Error returns the message with the column.
func (e *Error) Error() string { return fmt.Sprintf("column %d: %s", e.Column, e.Message) }

type tokenKind int

const (
	tokenEnd tokenKind = iota
	tokenWord
	tokenString
	tokenNumber
	// tokenSign is an operator, a parenthesis, a bracket, a comma or a dot.
	tokenSign
)

type token struct {
	kind tokenKind
	// text is the value of a string, and the source text of other tokens.
	text string
	// column is the column of the first character.
	column int
	// joined is true if no white space precedes the token.
	joined bool
}

// is returns true if the token is this sign, or this word in any case.
func (t token) is(text string) bool {
	return (t.kind == tokenSign && t.text == text) || (t.kind == tokenWord && strings.EqualFold(t.text, text))
}

// describe returns the token as errors show it.
func (t token) describe() string {
	switch t.kind {
	case tokenEnd:
		return "the end"
	case tokenString:
		return fmt.Sprintf("the string %.40q", t.text)
	default:
		return fmt.Sprintf("%.40q", t.text)
	}
}

// tokenPattern matches white space followed by one token or the end. It has one group for each
// tokenKind. The parser validates numbers where it uses them.
var tokenPattern = regexp.MustCompile(`^([ \t\r\n]*)(?:` +
	`([A-Za-z_][A-Za-z0-9_-]*)|` +
	`('(?:''|[^'\x00])*')|` +
	`([0-9-][0-9]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]*)?)|` +
	`([!<>]=|[=<>()\[\],.])|$)`)

// lex splits a text into tokens. The last token is tokenEnd.
func lex(text string) ([]token, error) {
	if len(text) > maxLength {
		return nil, &Error{Column: 1, Message: fmt.Sprintf("the text is longer than %d bytes", maxLength)}
	}

	if !utf8.ValidString(text) {
		return nil, &Error{Column: 1, Message: "the text is not UTF-8"}
	}

	var tokens []token

	for offset := 0; ; {
		found := tokenPattern.FindStringSubmatch(text[offset:])
		if found == nil {
			return nil, newLexError(text, offset)
		}

		next := token{column: columnAt(text, offset+len(found[1])), joined: found[1] == ""}

		for kind, matchedText := range found[2:] {
			if matchedText != "" {
				next.kind, next.text = tokenWord+tokenKind(kind), matchedText
			}
		}

		if next.kind == tokenString {
			next.text = strings.ReplaceAll(next.text[1:len(next.text)-1], "''", "'")
		}

		tokens = append(tokens, next)

		if next.kind == tokenEnd {
			return tokens, nil
		}

		offset += len(found[0])
	}
}

// newLexError explains why the text has no token at an offset, after white space.
func newLexError(text string, offset int) error {
	rest := strings.TrimLeft(text[offset:], " \t\r\n")
	offset = len(text) - len(rest)
	nul := strings.IndexByte(rest, 0)

	switch {
	case rest[0] != '\'':
		r, _ := utf8.DecodeRuneInString(rest)

		return &Error{Column: columnAt(text, offset), Message: fmt.Sprintf("unexpected %q: write text in single quotes", r)}
	case nul > 0:
		return &Error{Column: columnAt(text, offset+nul), Message: "text must not contain a NUL character"}
	default:
		return &Error{Column: columnAt(text, offset), Message: "the string is not terminated: ' is missing"}
	}
}

func columnAt(text string, offset int) int { return utf8.RuneCountInString(text[:offset]) + 1 }
