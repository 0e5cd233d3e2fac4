// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package templates

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"text/template/parse"

	template "github.com/DataDog/datadog-agent/pkg/template/text"
)

// What is put into a template to count what it takes. Texts are parsed without them, so
// that authors can't call them.
const (
	stepFunction  = "hyperfleetStep"
	enterFunction = "hyperfleetEnter"
	leaveFunction = "hyperfleetLeave"
)

// Functions are those that a caller adds to Go's; those that make texts count them on the
// budget. They are made once for many executions, one after the other.
type Functions func(*Budget) template.FuncMap

// Template is a text with Go templates in it. It is safe for concurrent use.
type Template struct {
	parsed    *template.Template
	limits    Limits
	functions Functions
	// runs are copies that are not in use, each with functions on a budget of its own:
	// making one takes longer than to execute most templates.
	runs sync.Pool
}

// run is a copy of a template for one execution at a time.
type run struct {
	template *template.Template
	budget   *Budget
}

// Parse reads a text; a key that a map does not have is an error when it is executed. Methods of
// values are not called: a program that calls them by the names that a text has keeps all there
// are (ADR 0057). Each, which may be nil, is called with every template of the text before
// counting is put into it. Errors are those of text/template, or a *LimitError.
func Parse(name, text string, limits Limits, functions Functions, each func(*parse.Tree)) (*Template, error) {
	if strings.Count(text, "{{") > MaxActions {
		return nil, &LimitError{Kind: Actions, Limit: MaxActions}
	}

	if limits.Steps == 0 {
		limits.Steps = DefaultSteps
	}

	out := &Template{limits: limits, functions: functions}

	parsed, err := template.New(name).Option("missingkey=error").Funcs(out.known()).Parse(text)
	if err != nil {
		return nil, err
	}

	for _, one := range parsed.Templates() {
		if one.Tree == nil || one.Root == nil {
			continue
		}

		if each != nil {
			each(one.Tree)
		}

		if err := count(one.Root); err != nil {
			return nil, err
		}
	}

	out.parsed = parsed

	return out, nil
}

// Execute gives the text with the values of data. Errors are those of text/template and of
// functions, and wrap a *LimitError where a limit was reached.
func (t *Template) Execute(data any) (string, error) {
	one, err := t.take()
	if err != nil {
		return "", err
	}

	// One that panics is not used again.
	out := limited{limit: t.limits.Output}
	err = one.template.Execute(&out, data)

	t.runs.Put(one)

	if err != nil {
		return "", err
	}

	return out.String(), nil
}

// take gives a copy that has its whole budget.
func (t *Template) take() (*run, error) {
	if one, ok := t.runs.Get().(*run); ok {
		*one.budget = Budget{limits: t.limits}

		return one, nil
	}

	budget := &Budget{limits: t.limits}

	copied, err := t.parsed.Clone()
	if err != nil {
		return nil, fmt.Errorf("copy template: %w", err)
	}

	return &run{template: copied.Funcs(t.funcs(budget)), budget: budget}, nil
}

// known are the functions that authors can call.
func (t *Template) known() template.FuncMap { return t.functions(&Budget{limits: t.limits}) }

// funcs are the functions of executions that count on a budget.
func (t *Template) funcs(budget *Budget) template.FuncMap {
	out := builtins(budget)
	maps.Copy(out, t.functions(budget))

	return out
}

// builtins are Go's functions that make texts, and those that count.
func builtins(budget *Budget) template.FuncMap {
	plain := func(f func(...any) string, growth int) func(...any) (string, error) {
		return func(args ...any) (string, error) {
			if err := budget.Room(saturated(Size(args...), growth)); err != nil {
				return "", err
			}

			return budget.Made(f(args...))
		}
	}

	return template.FuncMap{
		"print":    plain(fmt.Sprint, 1),
		"println":  plain(fmt.Sprintln, 1),
		"html":     plain(template.HTMLEscaper, perEscaped),
		"js":       plain(template.JSEscaper, perEscaped),
		"urlquery": plain(template.URLQueryEscaper, perEscaped),
		"printf": func(format string, args ...any) (string, error) {
			if err := budget.Room(formatted(format, args)); err != nil {
				return "", err
			}

			return budget.Made(fmt.Sprintf(format, args...))
		},
		stepFunction: budget.step, enterFunction: budget.enter, leaveFunction: budget.leave,
	}
}

// count puts calls of the functions that count into a template.
func count(root *parse.ListNode) error {
	enter, err := call(enterFunction)
	if err != nil {
		return err
	}

	leave, err := call(leaveFunction)
	if err != nil {
		return err
	}

	nodes, err := visit(root)
	if err != nil {
		return err
	}

	if err := addStep(root, nodes); err != nil {
		return err
	}

	root.Nodes = append(append([]parse.Node{enter}, root.Nodes...), leave)

	return nil
}

// call is the node of a call.
func call(text string) (parse.Node, error) {
	known := map[string]any{stepFunction: true, enterFunction: true, leaveFunction: true}

	trees, err := parse.Parse("count", "{{ "+text+" }}", "", "", known)
	if err != nil {
		return nil, fmt.Errorf("count steps: %w", err)
	}

	return trees["count"].Root.Nodes[0], nil
}

func addStep(list *parse.ListNode, nodes int) error {
	step, err := call(stepFunction + " " + strconv.Itoa(nodes+1))
	if err != nil {
		return err
	}

	list.Nodes = append([]parse.Node{step}, list.Nodes...)

	return nil
}

// visit gives the nodes that one pass of a list executes at most, its loops' bodies apart,
// which count by themselves.
func visit(list *parse.ListNode) (int, error) {
	if list == nil {
		return 0, nil
	}

	nodes := len(list.Nodes)

	for _, n := range list.Nodes {
		inner, err := visitNode(n)
		if err != nil {
			return 0, err
		}

		nodes += inner
	}

	return nodes, nil
}

func visitNode(n parse.Node) (int, error) {
	switch n := n.(type) {
	case *parse.IfNode:
		return visitBranch(&n.BranchNode)
	case *parse.WithNode:
		return visitBranch(&n.BranchNode)
	case *parse.RangeNode:
		nodes, err := visit(n.List)
		if err != nil {
			return 0, err
		}

		if err := addStep(n.List, nodes); err != nil {
			return 0, err
		}

		return visit(n.ElseList)
	default:
		return 0, nil
	}
}

func visitBranch(n *parse.BranchNode) (int, error) {
	yes, err := visit(n.List)
	if err != nil {
		return 0, err
	}

	no, err := visit(n.ElseList)

	return max(yes, no), err
}

// limited is a buffer that takes no more than it may.
type limited struct {
	bytes.Buffer

	limit int
}

// Write appends, up to the limit.
func (l *limited) Write(p []byte) (int, error) {
	if len(p) > l.limit-l.Len() {
		return 0, &LimitError{Kind: Output, Limit: l.limit}
	}

	return l.Buffer.Write(p)
}

// Limit is the limit that an error is about; ok is false for other errors.
func Limit(err error) (*LimitError, bool) {
	return errors.AsType[*LimitError](err)
}
