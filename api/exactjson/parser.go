// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package exactjson

import (
	stdjson "encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxKeyLength is the maximum length of a key in an error, in bytes.
const maxKeyLength = 64

// parser reads a document of which encoding/json has accepted the syntax.
type parser struct {
	data []byte
	next int
	path []string
	// number converts a number.
	number func(literal string) any
	// reject may return a problem of a string or json.Number. It may be nil.
	reject func(value any) string
}

func (p *parser) parse() (any, error) {
	if !stdjson.Valid(p.data) {
		return nil, newSyntaxError(p.data)
	}

	return p.parseValue()
}

func (p *parser) newError(problem string) *Error {
	return &Error{Path: slices.Clone(p.path), Problem: problem}
}

// peek skips white space and returns the next byte.
func (p *parser) peek() byte {
	for {
		switch p.data[p.next] {
		case ' ', '\t', '\r', '\n':
			p.next++
		default:
			return p.data[p.next]
		}
	}
}

// parseItems calls one for each item of an object or a list, which ends with the byte end.
func (p *parser) parseItems(end byte, one func(index int) error) error {
	p.next++

	for index := 0; p.peek() != end; index++ {
		if err := one(index); err != nil {
			return err
		}

		if p.peek() == ',' {
			p.next++
		}
	}

	p.next++

	return nil
}

func (p *parser) parseValue() (any, error) {
	switch p.peek() {
	case '{':
		return p.parseObject()
	case '[':
		return p.parseList()
	case '"':
		return p.parseString()
	case 't':
		p.next += len("true")

		return true, nil
	case 'f':
		p.next += len("false")

		return false, nil
	case 'n':
		p.next += len("null")

		return nil, nil //nolint:nilnil // the value of null
	default:
		return p.parseNumber()
	}
}

func (p *parser) parseObject() (any, error) {
	object := map[string]any{}

	err := p.parseItems('}', func(int) error {
		p.peek()

		key, err := p.parseString()
		if err != nil {
			return err
		}

		p.path = append(p.path, cutKey(key))

		if _, isKnown := object[key]; isKnown {
			return p.newError("is listed more than once")
		}

		p.peek()
		p.next++ // the colon

		object[key], err = p.parseValue()
		p.path = p.path[:len(p.path)-1]

		return err
	})

	return object, err
}

func (p *parser) parseList() (any, error) {
	list := []any{}

	err := p.parseItems(']', func(index int) error {
		p.path = append(p.path, strconv.Itoa(index))

		value, err := p.parseValue()
		if err != nil {
			return err
		}

		p.path = p.path[:len(p.path)-1]
		list = append(list, value)

		return nil
	})

	return list, err
}

// cutKey returns a key as an error may contain it.
func cutKey(key string) string {
	if len(key) > maxKeyLength {
		key = key[:maxKeyLength] + "..."
	}

	return strings.ToValidUTF8(key, "\uFFFD")
}

func (p *parser) parseNumber() (any, error) {
	begin := p.next

	for p.next < len(p.data) && strings.IndexByte("+-.eE0123456789", p.data[p.next]) >= 0 {
		p.next++
	}

	literal := string(p.data[begin:p.next])
	if err := p.check(stdjson.Number(literal)); err != nil {
		return nil, err
	}

	return p.number(literal), nil
}

func (p *parser) check(value any) error {
	if p.reject == nil {
		return nil
	}

	if problem := p.reject(value); problem != "" {
		return p.newError(problem)
	}

	return nil
}

// parseString returns the value of a string, which may be a key.
func (p *parser) parseString() (string, error) {
	p.next++
	begin, isEscaped := p.next, false

	for p.data[p.next] != '"' {
		if p.data[p.next] == '\\' {
			isEscaped = true
			p.next++
		}

		p.next++
	}

	raw := string(p.data[begin:p.next])
	p.next++

	switch {
	case !utf8.ValidString(raw):
		return "", p.newError("has text that is not valid UTF-8")
	case isEscaped && hasLoneSurrogate(raw):
		return "", p.newError("has text with half of a surrogate pair (\\uD800 to \\uDFFF)")
	}

	value := raw

	if isEscaped {
		if err := stdjson.Unmarshal([]byte(`"`+raw+`"`), &value); err != nil {
			return "", err
		}
	}

	return value, p.check(value)
}

// hasLoneSurrogate returns true if a string as it is written in JSON escapes one half of a surrogate pair
// without the other.
func hasLoneSurrogate(raw string) bool {
	for i := strings.IndexByte(raw, '\\'); i >= 0 && i < len(raw); {
		if raw[i] != '\\' {
			i++

			continue
		}

		switch unit := parseUnit(raw[i:]); {
		case unit < 0:
			i += 2
		case unit >= 0xDC00 && unit <= 0xDFFF:
			return true
		case unit >= 0xD800 && unit < 0xDC00:
			if low := parseUnit(raw[i+6:]); low < 0xDC00 || low > 0xDFFF {
				return true
			}

			i += 12
		default:
			i += 6
		}
	}

	return false
}

// parseUnit returns the UTF-16 code unit of the escape sequence \uXXXX with which text begins. It returns -1
// if text begins with something else.
func parseUnit(text string) int64 {
	if len(text) < 6 || text[:2] != `\u` {
		return -1
	}

	unit, err := strconv.ParseInt(text[2:6], 16, 32)
	if err != nil {
		return -1
	}

	return unit
}
