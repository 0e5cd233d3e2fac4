// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package search

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// maxLength of a condition in bytes, as in the API's contract.
const maxLength = 4096

// Error says what is wrong with a condition or an order, and where.
type Error struct {
	// Column is that of the character, counted from 1, at which it is wrong.
	Column int
	// Message says what is wrong there.
	Message string
}

// Error names the column.
func (e *Error) Error() string { return fmt.Sprintf("column %d: %s", e.Column, e.Message) }

type tokenKind int

const (
	tokenEnd tokenKind = iota
	tokenWord
	tokenString
	tokenNumber
	// tokenSign is an operator, parenthesis, comma or dot.
	tokenSign
)

type token struct {
	kind tokenKind
	// text is the value of a string, and what is written of the others.
	text string
	// column of its first character.
	column int
	// joined: nothing stands between it and the one before.
	joined bool
}

// is tells whether the token is this sign or, in any case, this word.
func (t token) is(text string) bool {
	return (t.kind == tokenSign && t.text == text) || (t.kind == tokenWord && strings.EqualFold(t.text, text))
}

// shown is the token in an error.
func (t token) shown() string {
	switch t.kind {
	case tokenEnd:
		return "the end"
	case tokenString:
		return fmt.Sprintf("the string %.40q", t.text)
	default:
		return fmt.Sprintf("%.40q", t.text)
	}
}

// tokenForm is white space and one token, or the end: a group for each tokenKind. Whether a
// number is one is checked where it is used.
var tokenForm = regexp.MustCompile(`^([ \t\r\n]*)(?:` +
	`([A-Za-z_][A-Za-z0-9_-]*)|` +
	`('(?:''|[^'\x00])*')|` +
	`([0-9-][0-9]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]*)?)|` +
	`([!<>]=|[=<>()\[\],.])|$)`)

// lex splits a text into tokens, the last of them tokenEnd.
func lex(text string) ([]token, error) {
	if len(text) > maxLength {
		return nil, &Error{Column: 1, Message: fmt.Sprintf("longer than %d bytes", maxLength)}
	}

	if !utf8.ValidString(text) {
		return nil, &Error{Column: 1, Message: "not UTF-8"}
	}

	var tokens []token

	for at := 0; ; {
		found := tokenForm.FindStringSubmatch(text[at:])
		if found == nil {
			return nil, noToken(text, at)
		}

		one := token{column: columnOf(text, at+len(found[1])), joined: found[1] == ""}

		for kind, written := range found[2:] {
			if written != "" {
				one.kind, one.text = tokenWord+tokenKind(kind), written
			}
		}

		if one.kind == tokenString {
			one.text = strings.ReplaceAll(one.text[1:len(one.text)-1], "''", "'")
		}

		tokens = append(tokens, one)

		if one.kind == tokenEnd {
			return tokens, nil
		}

		at += len(found[0])
	}
}

// noToken says why there is no token, after white space, at an offset of the text.
func noToken(text string, at int) error {
	rest := strings.TrimLeft(text[at:], " \t\r\n")
	at = len(text) - len(rest)
	nul := strings.IndexByte(rest, 0)

	switch {
	case rest[0] != '\'':
		r, _ := utf8.DecodeRuneInString(rest)

		return &Error{Column: columnOf(text, at), Message: fmt.Sprintf("%q has no meaning here: text is written as 'text'", r)}
	case nul > 0:
		return &Error{Column: columnOf(text, at+nul), Message: "a NUL character, which no text can hold"}
	default:
		return &Error{Column: columnOf(text, at), Message: "the string has no end: ' is missing"}
	}
}

// columnOf is that of the character at an offset.
func columnOf(text string, offset int) int { return utf8.RuneCountInString(text[:offset]) + 1 }
