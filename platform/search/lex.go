// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package search

import (
	"fmt"
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

type lexer struct {
	text   string
	offset int
	column int
	tokens []token
}

// lex splits a text into tokens, the last of them tokenEnd.
func lex(text string) ([]token, error) {
	if len(text) > maxLength {
		return nil, &Error{Column: 1, Message: fmt.Sprintf("longer than %d bytes", maxLength)}
	}

	if !utf8.ValidString(text) {
		return nil, &Error{Column: 1, Message: "not UTF-8"}
	}

	l := &lexer{text: text, column: 1}

	for {
		spaces := l.take(func(c byte) bool { return strings.IndexByte(" \t\r\n", c) >= 0 })

		next, err := l.next()
		if err != nil {
			return nil, err
		}

		next.joined = spaces == ""
		l.tokens = append(l.tokens, next)

		if next.kind == tokenEnd {
			return l.tokens, nil
		}
	}
}

func (l *lexer) next() (token, error) {
	at := token{column: l.column}

	if l.offset == len(l.text) {
		return at, nil
	}

	c := l.text[l.offset]

	switch {
	case c == '\'':
		return l.quoted(at)
	case isLetter(c):
		at.kind, at.text = tokenWord, l.take(func(c byte) bool { return isLetter(c) || isDigit(c) || c == '-' })
	case isDigit(c), c == '-':
		at.kind, at.text = tokenNumber, l.number()
	default:
		at.kind, at.text = tokenSign, l.sign()
	}

	if at.text == "" {
		r, _ := utf8.DecodeRuneInString(l.text[l.offset:])

		return at, &Error{Column: at.column, Message: fmt.Sprintf("%q has no meaning here: text is written as 'text'", r)}
	}

	return at, nil
}

// quoted reads a string; a quote in it is written twice.
func (l *lexer) quoted(at token) (token, error) {
	at.kind = tokenString

	var value strings.Builder

	l.skip(1)

	for {
		value.WriteString(l.take(func(c byte) bool { return c != '\'' && c != 0 }))

		switch rest := l.text[l.offset:]; {
		case rest == "":
			return at, &Error{Column: at.column, Message: "the string has no end: ' is missing"}
		case rest[0] == 0:
			return at, &Error{Column: l.column, Message: "a NUL character, which no text can hold"}
		case strings.HasPrefix(rest, "''"):
			value.WriteByte('\'')
			l.skip(2)
		default:
			l.skip(1)

			at.text = value.String()

			return at, nil
		}
	}
}

// number reads what looks like one; its value is checked where it is used.
func (l *lexer) number() string {
	start := l.offset

	l.takeOne("-")
	l.take(isDigit)

	if l.takeOne(".") {
		l.take(isDigit)
	}

	if l.takeOne("eE") {
		l.takeOne("+-")
		l.take(isDigit)
	}

	return l.text[start:l.offset]
}

func (l *lexer) sign() string {
	for _, sign := range []string{"!=", "<=", ">=", "=", "<", ">", "(", ")", "[", "]", ",", "."} {
		if strings.HasPrefix(l.text[l.offset:], sign) {
			l.skip(len(sign))

			return sign
		}
	}

	return ""
}

// take reads bytes while they are wanted.
func (l *lexer) take(wanted func(byte) bool) string {
	start := l.offset
	for l.offset < len(l.text) && wanted(l.text[l.offset]) {
		l.skip(1)
	}

	return l.text[start:l.offset]
}

func (l *lexer) takeOne(of string) bool {
	if l.offset < len(l.text) && strings.IndexByte(of, l.text[l.offset]) >= 0 {
		l.skip(1)

		return true
	}

	return false
}

func (l *lexer) skip(bytes int) {
	for range bytes {
		// Continuation bytes belong to the character before.
		if utf8.RuneStart(l.text[l.offset]) {
			l.column++
		}

		l.offset++
	}
}

func isLetter(c byte) bool { return c == '_' || (c|0x20 >= 'a' && c|0x20 <= 'z') }
func isDigit(c byte) bool  { return c >= '0' && c <= '9' }
