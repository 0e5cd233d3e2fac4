// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kargs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Bounds of what is read.
const (
	maxData  = 1 << 20
	maxDepth = 32
	maxKey   = 1000 // YAML allows 1024 before the colon
)

// kind of a value.
type kind int

const (
	scalar kind = iota
	sequence
	mapping
)

// value is one value of JSON or YAML. Mappings keep the order of their keys.
type value struct {
	kind   kind
	line   int
	text   string
	quoted bool // a text, whatever it looks like
	items  []*value
	keys   []string // of a mapping, beside items
}

// null says whether a value is not there.
func (v *value) null() bool {
	return v == nil || v.kind == scalar && !v.quoted &&
		(v.text == "" || v.text == "~" || v.text == "null" || v.text == "Null" || v.text == "NULL")
}

// get finds a key's value; nil if there is none or it is null.
func (v *value) get(key string) *value {
	if v == nil || v.kind != mapping {
		return nil
	}

	for i, k := range v.keys {
		if k == key && !v.items[i].null() {
			return v.items[i]
		}
	}

	return nil
}

// parse reads JSON, or the part of YAML that network data is written in: block and flow
// mappings and lists, plain and quoted texts on one line, comments.
func parse(data []byte) (*value, error) {
	if len(data) > maxData {
		return nil, fmt.Errorf("%d bytes, at most %d are read", len(data), maxData)
	}

	if json.Valid(data) {
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.UseNumber()

		return parseJSON(dec, 0)
	}

	if !utf8.Valid(data) {
		return nil, errors.New("is not UTF-8")
	}

	lines, err := split(string(data))
	if err != nil {
		return nil, err
	}

	p := &parser{lines: lines}
	if len(lines) == 0 {
		return &value{}, nil
	}

	v, err := p.block(lines[0].indent, 0)
	if err != nil {
		return nil, err
	}

	if p.at < len(p.lines) {
		return nil, p.lines[p.at].errorf("is not indented as what it belongs to")
	}

	return v, nil
}

func parseJSON(dec *json.Decoder, depth int) (*value, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("is more than %d levels deep", maxDepth)
	}

	token, err := dec.Token()
	if err != nil {
		return nil, fmt.Errorf("read JSON: %w", err)
	}

	open, isDelim := token.(json.Delim)
	if !isDelim {
		s, isText := token.(string)
		if !isText && token != nil {
			s = fmt.Sprint(token)
		}

		return &value{text: s, quoted: isText}, nil
	}

	v := &value{kind: sequence}
	if open == '{' {
		v.kind = mapping
	}

	for dec.More() {
		if v.kind == mapping {
			key, err := dec.Token()
			if err != nil {
				return nil, fmt.Errorf("read JSON: %w", err)
			}

			v.keys = append(v.keys, fmt.Sprint(key))
		}

		item, err := parseJSON(dec, depth+1)
		if err != nil {
			return nil, err
		}

		v.items = append(v.items, item)
	}

	_, err = dec.Token()

	return v, errors.Join(err, v.double())
}

// double refuses a key that is there twice.
func (v *value) double() error {
	seen := map[string]bool{}
	for _, k := range v.keys {
		if seen[k] {
			return fmt.Errorf("line %d: the key %q is there twice", v.line, k)
		}

		seen[k] = true
	}

	return nil
}

// line is one line with something on it.
type line struct {
	number, indent int
	text           string
}

func (l line) errorf(format string, args ...any) error {
	return fmt.Errorf("line %d: "+format, append([]any{l.number}, args...)...)
}

// split gives the lines that say something, without their indent and end.
func split(data string) ([]line, error) {
	var out []line

	for i, text := range strings.Split(data, "\n") {
		text = strings.TrimRight(strings.TrimSuffix(text, "\r"), " ")
		body := strings.TrimLeft(text, " ")
		l := line{number: i + 1, indent: len(text) - len(body), text: body}

		switch {
		case strings.ContainsFunc(body, isControl):
			return nil, l.errorf("has a control character")
		case body == "" || body[0] == '#':
			continue
		case strings.Contains(body, "\t"):
			return nil, l.errorf("has a tab: use blanks")
		case l.indent == 0 && len(out) == 0 && body == "---":
			continue
		case l.indent == 0 && (body[0] == '%' || strings.HasPrefix(body, "---") || strings.HasPrefix(body, "...")):
			return nil, l.errorf("directives, and more than one document, are not read")
		}

		out = append(out, l)
	}

	return out, nil
}

// isControl says whether a character is one that YAML does not allow, or takes for a line's
// end where others do not.
func isControl(r rune) bool {
	return r < ' ' && r != '\t' || r >= 0x7f && r < 0xa0 || strings.ContainsRune("\ufeff\u2028\u2029\ufffe\uffff", r)
}

// parser reads blocks of lines.
type parser struct {
	lines []line
	at    int
}

// block reads the value that begins at the present line, which has this indent.
func (p *parser) block(indent, depth int) (*value, error) {
	l := p.lines[p.at]

	switch {
	case depth > maxDepth:
		return nil, l.errorf("is more than %d levels deep", maxDepth)
	case isItem(l.text):
		return p.list(indent, depth)
	}

	_, _, isPair, err := pair(l)
	if err != nil {
		return nil, err
	}

	if isPair {
		return p.mapping(indent, depth)
	}

	return p.flow(depth)
}

func isItem(text string) bool { return text == "-" || strings.HasPrefix(text, "- ") }

// list reads "- item" lines of one indent.
func (p *parser) list(indent, depth int) (*value, error) {
	v := &value{kind: sequence, line: p.lines[p.at].number}

	for p.at < len(p.lines) && p.lines[p.at].indent == indent && isItem(p.lines[p.at].text) {
		l := &p.lines[p.at]
		rest := strings.TrimLeft(l.text[1:], " ")

		if rest == "" || rest[0] == '#' {
			p.at++

			item, err := p.below(indent, depth)
			if err != nil {
				return nil, err
			}

			v.items = append(v.items, item)

			continue
		}

		// What follows the dash is a block of its own that begins where it stands.
		l.indent += len(l.text) - len(rest)
		l.text = rest

		item, err := p.block(l.indent, depth+1)
		if err != nil {
			return nil, err
		}

		v.items = append(v.items, item)
	}

	return v, p.deeper(indent)
}

// deeper refuses a line that is further in than the block that ended before it.
func (p *parser) deeper(indent int) error {
	if p.at < len(p.lines) && p.lines[p.at].indent > indent {
		return p.lines[p.at].errorf("is not indented as what it belongs to")
	}

	return nil
}

// below reads the block further in than indent; a null if there is none.
func (p *parser) below(indent, depth int) (*value, error) {
	if p.at == len(p.lines) || p.lines[p.at].indent <= indent {
		return &value{}, nil
	}

	return p.block(p.lines[p.at].indent, depth+1)
}

// mapping reads "key: value" lines of one indent.
func (p *parser) mapping(indent, depth int) (*value, error) {
	v := &value{kind: mapping, line: p.lines[p.at].number}

	for p.at < len(p.lines) && p.lines[p.at].indent == indent && !isItem(p.lines[p.at].text) {
		l := &p.lines[p.at]

		key, rest, isPair, err := pair(*l)
		if err != nil {
			return nil, err
		}

		if !isPair {
			return nil, l.errorf("must be key: value")
		}

		var item *value

		if rest == "" {
			p.at++
			item, err = p.valueOf(indent, depth)
		} else {
			l.text = rest
			item, err = p.flow(depth)
		}

		if err != nil {
			return nil, err
		}

		v.keys, v.items = append(v.keys, key), append(v.items, item)
	}

	return v, errors.Join(p.deeper(indent), v.double())
}

// valueOf reads what stands below a key: a block further in, or a list as far in.
func (p *parser) valueOf(indent, depth int) (*value, error) {
	if p.at < len(p.lines) && p.lines[p.at].indent == indent && isItem(p.lines[p.at].text) {
		return p.list(indent, depth+1)
	}

	return p.below(indent, depth)
}

// flow reads a value that is no block: [a, b], {a: b}, 'a', "a" or a. Only lists and
// mappings may go on in the next lines.
func (p *parser) flow(depth int) (*value, error) {
	l := p.lines[p.at]
	f := &flow{line: l, text: l.text}
	p.at++

	if l.text[0] == '[' || l.text[0] == '{' {
		for f.open() && p.at < len(p.lines) {
			f.text += "\n" + p.lines[p.at].text
			p.at++
		}
	}

	v, err := f.value(depth, false)
	if err != nil {
		return nil, err
	}

	if !f.end() {
		return nil, l.errorf("%q: was not expected here", f.text[f.at:])
	}

	return v, nil
}
