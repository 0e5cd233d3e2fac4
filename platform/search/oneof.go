// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package search

// ParseOneOf parses a condition that a field has one of several values, such as "adapter = 'dns'"
// or "adapter in ('dns', 'images')", and returns the values. Errors: *Error.
func ParseOneOf(name, text string) ([]string, error) {
	tokens, err := lex(text)
	if err != nil {
		return nil, err
	}

	p := &parser{tokens: tokens}
	if err := p.expect(name); err != nil {
		return nil, err
	}

	var out []string

	value := func() error {
		literal := p.next()
		if literal.kind != tokenString {
			return newTokenError(literal, "expected text as a string, in single quotes")
		}

		out = append(out, literal.text)

		return nil
	}

	if p.accept("=") {
		err = value()
	} else if err = p.expect("in"); err == nil {
		err = p.parseList(value)
	}

	if err == nil && p.peek().kind != tokenEnd {
		err = newTokenError(p.peek(), "expected the end")
	}

	return out, err
}
