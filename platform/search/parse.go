// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package search

import (
	"fmt"
	"slices"
	"strings"
)

const (
	// maxDepth of parentheses and nots.
	maxDepth = 50
	// maxValues bounds the values of one condition, and so its arguments.
	maxValues = 500
)

// Condition is a checked condition on resources.
type Condition struct {
	root node
}

// node is a part of a condition: its SQL, which may be NULL where it is false.
type node func(alias string, args *Args) string

// Parse checks a condition. Errors: *Error.
func Parse(text string) (*Condition, error) {
	tokens, err := lex(text)
	if err != nil {
		return nil, err
	}

	p := &parser{tokens: tokens}

	root, err := p.or()
	if err != nil {
		return nil, err
	}

	if rest := p.peek(); rest.kind != tokenEnd {
		return nil, wrong(rest, "expected and, or, or the end")
	}

	return &Condition{root: root}, nil
}

// SQL is the condition on the table or view of resources that has the alias, with its
// values added to the arguments.
func (c *Condition) SQL(alias string, args *Args) string {
	return "(" + c.root(alias, args) + ")"
}

// Args are the arguments of a statement.
type Args struct {
	values []any
}

// Add adds a value and returns its placeholder.
func (a *Args) Add(value any) string {
	a.values = append(a.values, value)

	return fmt.Sprintf("$%d", len(a.values))
}

// Values are the arguments, in the order of their placeholders.
func (a *Args) Values() []any { return slices.Clone(a.values) }

type parser struct {
	tokens []token
	at     int
	depth  int
	values int
}

func (p *parser) peek() token { return p.tokens[p.at] }

func (p *parser) take() token {
	t := p.tokens[p.at]
	if t.kind != tokenEnd {
		p.at++
	}

	return t
}

// accept takes the next token if it is the sign or word.
func (p *parser) accept(text string) bool {
	if p.peek().is(text) {
		p.at++

		return true
	}

	return false
}

func (p *parser) expect(text string) error {
	if !p.accept(text) {
		return wrong(p.peek(), "expected "+text)
	}

	return nil
}

func wrong(at token, message string) error {
	return &Error{Column: at.column, Message: message + ", not " + at.shown()}
}

func (p *parser) or() (node, error) { return p.chain("or", p.and) }

func (p *parser) and() (node, error) { return p.chain("and", p.not) }

func (p *parser) chain(word string, part func() (node, error)) (node, error) {
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

	return chained(word, parts), nil
}

func (p *parser) not() (node, error) {
	p.depth++
	if p.depth > maxDepth {
		return nil, &Error{Column: p.peek().column, Message: fmt.Sprintf("nested deeper than %d", maxDepth)}
	}

	defer func() { p.depth-- }()

	switch {
	case p.accept("not"):
		inner, err := p.not()

		return negated(inner), err
	case p.accept("("):
		inner, err := p.or()
		if err != nil {
			return nil, err
		}

		return inner, p.expect(")")
	default:
		return p.comparison()
	}
}

func (p *parser) comparison() (node, error) {
	at, err := p.field()
	if err != nil {
		return nil, err
	}

	switch {
	case p.accept("is"):
		return p.null(at)
	case p.accept("in"):
		return p.in(at)
	case p.accept("not"):
		if err := p.expect("in"); err != nil {
			return nil, err
		}

		inner, err := p.in(at)

		return negated(inner), err
	}

	operator := p.take()
	if operator.kind != tokenSign || !slices.Contains([]string{"=", "!=", "<", "<=", ">", ">="}, operator.text) {
		return nil, wrong(operator, "expected one of = != < <= > >= in not is")
	}

	if operator.text == "!=" {
		inner, err := p.compared(at, "=")

		return negated(inner), err
	}

	return p.compared(at, operator.text)
}

// compared reads a value and compares the field with it.
func (p *parser) compared(field field, operator string) (node, error) {
	value := p.take()

	p.values++
	if p.values > maxValues {
		return nil, &Error{Column: value.column, Message: fmt.Sprintf("more than %d values", maxValues)}
	}

	return field.compare(operator, value)
}

func (p *parser) in(field field) (node, error) {
	var parts []node

	err := p.list(func() error {
		part, err := p.compared(field, "=")
		parts = append(parts, part)

		return err
	})

	return chained("or", parts), err
}

// list reads one item or more in parentheses, or in brackets, which upstream's programs write.
func (p *parser) list(item func() error) error {
	end := ")"
	if p.accept("[") {
		end = "]"
	} else if err := p.expect("("); err != nil {
		return err
	}

	for {
		if err := item(); err != nil {
			return err
		}

		if !p.accept(",") {
			return p.expect(end)
		}
	}
}

func (p *parser) null(field field) (node, error) {
	not := p.accept("not")
	if err := p.expect("null"); err != nil {
		return nil, err
	}

	if not {
		return negated(field.null()), nil
	}

	return field.null(), nil
}

// field reads the parts of a field and finds out what it is.
func (p *parser) field() (field, error) {
	first := p.peek()

	var parts []token

	for {
		part := p.take()

		switch {
		case part.kind != tokenWord && part.kind != tokenString:
			return nil, wrong(part, "expected a field")
		case len(parts) > 0 && !part.joined:
			return nil, wrong(part, "expected the field to go on after its dot")
		case part.text == "":
			return nil, &Error{Column: part.column, Message: "a part of a field is empty"}
		}

		parts = append(parts, part)

		if dot := p.peek(); !dot.is(".") || !dot.joined {
			break
		}

		p.take()
	}

	return fieldOf(first, parts)
}

// chained joins parts with one of the words "and" and "or".
func chained(word string, parts []node) node {
	return func(alias string, args *Args) string {
		written := make([]string, 0, len(parts))
		for _, part := range parts {
			written = append(written, part(alias, args))
		}

		return "(" + strings.Join(written, " "+word+" ") + ")"
	}
}

// negated is true where its part is false or NULL.
func negated(part node) node {
	return func(alias string, args *Args) string { return "(" + part(alias, args) + ") is not true" }
}
