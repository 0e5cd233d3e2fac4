// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package search

import (
	"fmt"
	"slices"
	"strings"
)

const (
	// maxDepth is the maximum nesting of parentheses and "not".
	maxDepth = 50
	// maxValues is the maximum number of values in one condition, and so of its arguments.
	maxValues = 500
)

// Condition is a parsed condition on resources.
type Condition struct {
	root node
}

// node returns the SQL of a part of a condition. The SQL may be NULL instead of false.
type node func(args *Args) string

// Parse parses a condition. Errors: *Error.
func Parse(text string) (*Condition, error) {
	tokens, err := lex(text)
	if err != nil {
		return nil, err
	}

	p := &parser{tokens: tokens}

	root, err := p.parseOr()
	if err != nil {
		return nil, err
	}

	if rest := p.peek(); rest.kind != tokenEnd {
		return nil, newTokenError(rest, `expected "and", "or" or the end`)
	}

	return &Condition{root: root}, nil
}

// SQL returns the condition for the table of resources with the alias r. It adds the values of the
// condition to args.
func (c *Condition) SQL(args *Args) string {
	return "(" + c.root(args) + ")"
}

// Args are the arguments of an SQL statement.
type Args struct {
	values []any
}

// Add adds a value and returns its placeholder.
func (a *Args) Add(value any) string {
	a.values = append(a.values, value)

	return fmt.Sprintf("$%d", len(a.values))
}

// Values returns the arguments in the order of their placeholders.
func (a *Args) Values() []any { return slices.Clone(a.values) }

type parser struct {
	tokens   []token
	position int
	depth    int
	values   int
}

func (p *parser) peek() token { return p.tokens[p.position] }

func (p *parser) next() token {
	t := p.tokens[p.position]
	if t.kind != tokenEnd {
		p.position++
	}

	return t
}

// accept reports whether the next token is the sign or word, and consumes the token if it is.
func (p *parser) accept(text string) bool {
	if p.peek().is(text) {
		p.position++

		return true
	}

	return false
}

func (p *parser) expect(text string) error {
	if !p.accept(text) {
		return newTokenError(p.peek(), fmt.Sprintf("expected %q", text))
	}

	return nil
}

func newTokenError(found token, message string) error {
	return &Error{Column: found.column, Message: message + ", not " + found.describe()}
}

func (p *parser) parseOr() (node, error) { return p.parseChain("or", p.parseAnd) }

func (p *parser) parseAnd() (node, error) { return p.parseChain("and", p.parseNot) }

// parseChain parses one or more parts that are joined by a word, which is "and" or "or".
func (p *parser) parseChain(word string, part func() (node, error)) (node, error) {
	var parts []node

	for {
		next, err := part()
		if err != nil {
			return nil, err
		}

		parts = append(parts, next)

		if !p.accept(word) {
			break
		}
	}

	if len(parts) == 1 {
		return parts[0], nil
	}

	return joinNodes(word, parts), nil
}

func (p *parser) parseNot() (node, error) {
	p.depth++
	if p.depth > maxDepth {
		return nil, &Error{Column: p.peek().column, Message: fmt.Sprintf("the condition is nested deeper than %d", maxDepth)}
	}

	defer func() { p.depth-- }()

	switch {
	case p.accept("not"):
		inner, err := p.parseNot()

		return negate(inner), err
	case p.accept("("):
		inner, err := p.parseOr()
		if err != nil {
			return nil, err
		}

		return inner, p.expect(")")
	default:
		return p.parseComparison()
	}
}

// parseComparison parses FIELD OPERATOR VALUE, FIELD [NOT] IN (...) or FIELD IS [NOT] NULL. It converts !=
// to a negated =.
func (p *parser) parseComparison() (node, error) {
	target, err := p.parseField()
	if err != nil {
		return nil, err
	}

	switch {
	case p.accept("is"):
		return p.parseNull(target)
	case p.accept("in"):
		return p.parseIn(target)
	case p.accept("not"):
		if err := p.expect("in"); err != nil {
			return nil, err
		}

		inner, err := p.parseIn(target)

		return negate(inner), err
	}

	operator := p.next()
	if operator.kind != tokenSign || !slices.Contains([]string{"=", "!=", "<", "<=", ">", ">="}, operator.text) {
		return nil, newTokenError(operator, "expected one of = != < <= > >= in not is")
	}

	if operator.text == "!=" {
		inner, err := p.compareNext(target, "=")

		return negate(inner), err
	}

	return p.compareNext(target, operator.text)
}

// compareNext parses a value and compares the field with it.
func (p *parser) compareNext(field field, operator string) (node, error) {
	value := p.next()

	p.values++
	if p.values > maxValues {
		return nil, &Error{Column: value.column, Message: fmt.Sprintf("the condition has more than %d values", maxValues)}
	}

	return field.compare(operator, value)
}

func (p *parser) parseIn(field field) (node, error) {
	var parts []node

	err := p.parseList(func() error {
		part, err := p.compareNext(field, "=")
		parts = append(parts, part)

		return err
	})

	return joinNodes("or", parts), err
}

// parseList parses one or more items in parentheses, or in brackets, which programs of the upstream
// project use.
func (p *parser) parseList(item func() error) error {
	closing := ")"
	if p.accept("[") {
		closing = "]"
	} else if err := p.expect("("); err != nil {
		return err
	}

	for {
		if err := item(); err != nil {
			return err
		}

		if !p.accept(",") {
			return p.expect(closing)
		}
	}
}

func (p *parser) parseNull(field field) (node, error) {
	isNegated := p.accept("not")
	if err := p.expect("null"); err != nil {
		return nil, err
	}

	if isNegated {
		return negate(field.testNull()), nil
	}

	return field.testNull(), nil
}

func (p *parser) parseField() (field, error) {
	first := p.peek()

	var parts []token

	for {
		part := p.next()

		switch {
		case part.kind != tokenWord && part.kind != tokenString:
			return nil, newTokenError(part, "expected a field")
		case len(parts) > 0 && !part.joined:
			return nil, newTokenError(part, "expected the next part of the field right after the dot")
		case part.text == "":
			return nil, &Error{Column: part.column, Message: "a part of the field is empty"}
		}

		parts = append(parts, part)

		if dot := p.peek(); !dot.is(".") || !dot.joined {
			break
		}

		p.next()
	}

	return findField(first, parts)
}

// joinNodes joins parts with the word "and" or "or".
func joinNodes(word string, parts []node) node {
	return func(args *Args) string {
		texts := make([]string, 0, len(parts))
		for _, part := range parts {
			texts = append(texts, part(args))
		}

		return "(" + strings.Join(texts, " "+word+" ") + ")"
	}
}

// negate returns a node that is true if its part is false or NULL.
func negate(part node) node {
	return func(args *Args) string { return "(" + part(args) + ") is not true" }
}

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
