// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"errors"
	"fmt"
	"text/template"
	"text/template/parse"
)

// A template can loop for ever and double a text until memory is full, and nothing stops
// one from outside. So each round of a loop and each call of a template counts, and each
// text that a function makes is measured.

// errTooLong stops a template that takes more than maxSteps.
var errTooLong = errors.New("too long")

// maxSteps is how many rounds and calls a template may take.
const maxSteps = 100_000

// stepFunction is called at the beginning of each round and call.
const stepFunction = "hyperfleetStep"

// functions are those of templates: Go's own, toJson and base64.
func functions(limit int) template.FuncMap {
	steps := 0
	bounded := func(text string) (string, error) {
		if len(text) > limit {
			return "", errTooLarge
		}

		return text, nil
	}
	// Go's own functions that make texts.
	plain := func(f func(...any) string) func(...any) (string, error) {
		return func(args ...any) (string, error) { return bounded(f(args...)) }
	}
	checked := func(f func(any) (string, error)) func(any) (string, error) {
		return func(v any) (string, error) {
			text, err := f(v)
			if err != nil {
				return "", err
			}

			return bounded(text)
		}
	}

	return template.FuncMap{
		"toJson":   checked(toJSON),
		"base64":   checked(toBase64),
		"print":    plain(fmt.Sprint),
		"println":  plain(fmt.Sprintln),
		"html":     plain(template.HTMLEscaper),
		"js":       plain(template.JSEscaper),
		"urlquery": plain(template.URLQueryEscaper),
		"printf": func(format string, args ...any) (string, error) {
			return bounded(fmt.Sprintf(format, args...))
		},
		stepFunction: func() (string, error) {
			steps++
			if steps > maxSteps {
				return "", errTooLong
			}

			return "", nil
		},
	}
}

// countSteps puts a call of stepFunction into each loop and each template.
func countSteps(tmpl *template.Template) error {
	tick, err := parse.Parse("step", "{{ "+stepFunction+" }}", "", "", map[string]any{stepFunction: true})
	if err != nil {
		return fmt.Errorf("count steps: %w", err)
	}

	step := tick["step"].Root.Nodes[0]

	for _, t := range tmpl.Templates() {
		if t.Tree != nil && t.Root != nil {
			addStep(t.Root, step)
			visit(t.Root, step)
		}
	}

	return nil
}

func addStep(list *parse.ListNode, step parse.Node) {
	list.Nodes = append([]parse.Node{step.Copy()}, list.Nodes...)
}

// visit finds loops below a list.
func visit(list *parse.ListNode, step parse.Node) {
	if list == nil {
		return
	}

	for _, n := range list.Nodes {
		switch n := n.(type) {
		case *parse.IfNode:
			visit(n.List, step)
			visit(n.ElseList, step)
		case *parse.WithNode:
			visit(n.List, step)
			visit(n.ElseList, step)
		case *parse.RangeNode:
			addStep(n.List, step)
			visit(n.List, step)
			visit(n.ElseList, step)
		}
	}
}
