// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package search

// OneOf reads a condition that a field is one of some texts, "adapter = 'dns'" or
// "adapter in ('dns', 'images')", and gives the texts. Errors: *Error.
func OneOf(name, text string) ([]string, error) {
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
		at := p.take()
		if at.kind != tokenString {
			return wrong(at, "expected text as a string, in single quotes")
		}

		out = append(out, at.text)

		return nil
	}

	if p.accept("=") {
		err = value()
	} else if err = p.expect("in"); err == nil {
		err = p.list(value)
	}

	if err == nil && p.peek().kind != tokenEnd {
		err = wrong(p.peek(), "expected the end")
	}

	return out, err
}
