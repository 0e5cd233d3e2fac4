// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kargs

import (
	"encoding/json"
	"strings"
)

// Characters that begin something else than a plain text.
const (
	indicators = "&*!|>%@`?,]}#"
	blanks     = " \n"
)

// pair takes a line "key: value" apart. The rest is empty if nothing or only a comment
// follows the key.
func pair(l line) (key, rest string, isPair bool, err error) {
	f := &flow{line: l, text: l.text}

	switch l.text[0] {
	case '"', '\'':
		key, err = f.quoted()
		if err != nil {
			return "", "", false, err
		}

		rest = strings.TrimLeft(f.text[f.at:], " ")
		if !strings.HasPrefix(rest, ":") {
			return "", "", false, nil
		}

		rest = rest[1:]
	case '[', '{':
		return "", "", false, nil
	default:
		end := colon(l.text)
		if end < 0 {
			return "", "", false, nil
		}

		key, rest = strings.TrimRight(l.text[:end], blanks), l.text[end+1:]
		if err := f.plainKey(key); err != nil {
			return "", "", false, err
		}
	}

	if len(l.text)-len(rest) > maxKey {
		return "", "", false, l.errorf("a key has more than %d characters", maxKey)
	}

	if rest != "" && !strings.ContainsRune(blanks, rune(rest[0])) {
		return "", "", false, l.errorf("a blank must follow the : of a key")
	}

	rest = strings.TrimLeft(rest, blanks)
	if strings.HasPrefix(rest, "#") {
		rest = ""
	}

	if isItem(rest) || rest == "?" || strings.HasPrefix(rest, "? ") {
		return "", "", false, l.errorf("a list or a mapping must begin on a line of its own")
	}

	return key, rest, true, nil
}

// colon finds the : that ends a plain key; -1 if there is none.
func colon(text string) int {
	for i := range len(text) {
		switch {
		case text[i] == '#' && i > 0 && strings.IndexByte(blanks, text[i-1]) >= 0:
			return -1
		case text[i] == ':' && (i+1 == len(text) || strings.IndexByte(blanks, text[i+1]) >= 0):
			return i
		}
	}

	return -1
}

// flow reads values within a text.
type flow struct {
	line line
	text string
	at   int
}

// plainKey refuses what cannot be a key written plainly.
func (f *flow) plainKey(key string) error {
	if key == "" || strings.ContainsRune(indicators, rune(key[0])) || key == "<<" || key[0] == '-' && len(key) == 1 ||
		key[0] == ':' && len(key) == 1 {
		return f.line.errorf("key %q: merge keys, anchors, tags and complex keys are not read", key)
	}

	return nil
}

// open says whether a bracket is open at the end of the text.
func (f *flow) open() bool {
	depth, quote := 0, byte(0)

	for i := 0; i < len(f.text); i++ {
		c := f.text[i]

		switch {
		case quote == '"' && c == '\\':
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			if i == 0 || strings.IndexByte(blanks+"[{,:", f.text[i-1]) >= 0 {
				quote = c
			}
		case c == '#' && i > 0 && strings.IndexByte(blanks, f.text[i-1]) >= 0:
			end := strings.IndexByte(f.text[i:], '\n')
			if end < 0 {
				return depth > 0
			}

			i += end
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			depth--
		}
	}

	return depth > 0
}

// blank skips blanks, line ends and comments.
func (f *flow) blank() {
	for f.at < len(f.text) {
		c := f.text[f.at]

		switch {
		case strings.IndexByte(blanks, c) >= 0:
			f.at++
		case c == '#' && f.at > 0 && strings.IndexByte(blanks, f.text[f.at-1]) >= 0:
			end := strings.IndexByte(f.text[f.at:], '\n')
			if end < 0 {
				f.at = len(f.text)

				return
			}

			f.at += end
		default:
			return
		}
	}
}

// end says whether nothing follows.
func (f *flow) end() bool {
	f.blank()

	return f.at == len(f.text)
}

// peek is the next character; 0 at the end.
func (f *flow) peek() byte {
	if f.at == len(f.text) {
		return 0
	}

	return f.text[f.at]
}

// value reads one value. Inside of brackets a plain text ends at a comma or a bracket.
func (f *flow) value(depth int, inside bool) (*value, error) {
	if depth > maxDepth {
		return nil, f.line.errorf("is more than %d levels deep", maxDepth)
	}

	switch c := f.peek(); c {
	case '[', '{':
		return f.brackets(depth)
	case '"', '\'':
		text, err := f.quoted()

		return &value{line: f.line.number, text: text, quoted: true}, err
	default:
		return f.plain(inside)
	}
}

func (f *flow) brackets(depth int) (*value, error) {
	v := &value{kind: sequence, line: f.line.number}
	closing := byte(']')

	if f.peek() == '{' {
		v.kind, closing = mapping, '}'
	}

	f.at++

	for {
		f.blank()

		if f.peek() == closing {
			f.at++

			err := v.double()

			return v, err
		}

		if v.kind == mapping {
			key, err := f.key()
			if err != nil {
				return nil, err
			}

			v.keys = append(v.keys, key)
		}

		item := &value{line: f.line.number}

		if c := f.peek(); v.kind == sequence || c != ',' && c != closing {
			var err error
			if item, err = f.value(depth+1, true); err != nil {
				return nil, err
			}
		}

		v.items = append(v.items, item)

		f.blank()

		switch f.peek() {
		case ',':
			f.at++
		case closing:
		default:
			return nil, f.line.errorf("the list or mapping in brackets has no end, or lacks a comma")
		}
	}
}

// key reads the key of a mapping in brackets, and the : after it.
func (f *flow) key() (string, error) {
	var (
		key string
		err error
	)

	start := f.at

	wasQuoted := f.peek() == '"' || f.peek() == '\''
	if wasQuoted {
		key, err = f.quoted()
	} else {
		rest := f.text[f.at:]

		end := colon(rest)
		if end < 0 || strings.ContainsAny(rest[:end], ",[]{}\n") {
			return "", f.line.errorf("a mapping in brackets must have key: value, and a blank after the :")
		}

		key = strings.TrimRight(rest[:end], blanks)
		f.at += end
		err = f.plainKey(key)
	}

	if err != nil {
		return "", err
	}

	f.blank()

	if f.at-start > maxKey {
		return "", f.line.errorf("a key has more than %d characters", maxKey)
	}

	if f.peek() != ':' {
		return "", f.line.errorf("a mapping in brackets must have key: value")
	}

	f.at++
	f.blank()

	return key, nil
}

// quoted reads a quoted text. It must end on its line.
func (f *flow) quoted() (string, error) {
	start := f.at
	quote := f.text[start]

	for i := start + 1; i < len(f.text) && f.text[i] != '\n'; i++ {
		switch {
		case quote == '"' && f.text[i] == '\\':
			i++
		case f.text[i] == quote && quote == '\'' && i+1 < len(f.text) && f.text[i+1] == quote:
			i++
		case f.text[i] == quote:
			f.at = i + 1

			return f.unquote(f.text[start:f.at])
		}
	}

	return "", f.line.errorf("a quoted text must end on its line")
}

func (f *flow) unquote(text string) (string, error) {
	if text[0] == '\'' {
		return strings.ReplaceAll(text[1:len(text)-1], "''", "'"), nil
	}

	var out string
	if json.Unmarshal([]byte(text), &out) != nil {
		return "", f.line.errorf("%s: only the escapes of JSON are read", text)
	}

	return out, nil
}

// plain reads a text without quotes.
func (f *flow) plain(inside bool) (*value, error) {
	start := f.at

	for ; f.at < len(f.text) && f.text[f.at] != '\n'; f.at++ {
		c := f.text[f.at]
		last := f.at+1 == len(f.text) || strings.IndexByte(blanks, f.text[f.at+1]) >= 0

		if inside && strings.IndexByte(",[]{}", c) >= 0 || c == '#' && f.at > start && strings.IndexByte(blanks, f.text[f.at-1]) >= 0 {
			break
		}

		if c == ':' && (last || inside && strings.IndexByte(",[]{}", f.text[f.at+1]) >= 0) {
			return nil, f.line.errorf("a second : is in the value: put it in quotes")
		}
	}

	text := strings.TrimRight(f.text[start:f.at], blanks)
	if inside && strings.HasPrefix(text, ":") {
		return nil, f.line.errorf("%q begins with a colon: put it in quotes", text)
	}

	if text == "" || strings.ContainsRune(indicators+`"'`, rune(text[0])) || text == "-" ||
		strings.HasPrefix(text, "- ") {
		return nil, f.line.errorf("%q: anchors, aliases, tags and texts of several lines are not read", text)
	}

	return &value{line: f.line.number, text: text}, nil
}
