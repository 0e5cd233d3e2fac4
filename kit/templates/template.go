// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package templates

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/template/parse"

	template "github.com/DataDog/datadog-agent/pkg/template/text"
)

// Names of the functions that are inserted into a template to count its steps. Texts are parsed
// without these functions, so that authors cannot call them.
const (
	stepFunction  = "hyperfleetStep"
	enterFunction = "hyperfleetEnter"
	leaveFunction = "hyperfleetLeave"
)

// Functions returns the functions that a caller adds to the functions of Go's templates. Functions
// that create texts must count them on the budget. The same functions are used for many executions,
// one after the other.
type Functions func(*Budget) template.FuncMap

// Template is a parsed text with template actions. It is safe for concurrent use.
type Template struct {
	parsed    *template.Template
	limits    Limits
	functions Functions
	// copies are unused copies of the template. Each copy has functions with a budget of its own. The
	// copies are pooled, because creating a copy takes longer than most executions.
	copies sync.Pool
}

// templateCopy is a copy of a template for one execution at a time.
type templateCopy struct {
	template *template.Template
	budget   *Budget
}

// Parse parses a text. If the text uses a key that a map does not have, Execute returns an error.
// Templates cannot call methods of values: with calls by name, the linker would have to keep all
// methods of the program (ADR 0057). inspect is called with every template of the text before the
// counting functions are inserted. inspect may be nil. Errors come from text/template, or are a
// *LimitError.
func Parse(name, text string, limits Limits, functions Functions, inspect func(*parse.Tree)) (*Template, error) {
	if strings.Count(text, "{{") > MaxActions {
		return nil, &LimitError{Kind: ActionsLimit, Limit: MaxActions}
	}

	if limits.Steps == 0 {
		limits.Steps = DefaultSteps
	}

	out := &Template{limits: limits, functions: functions}

	parsed, err := template.New(name).Option("missingkey=error").Funcs(out.authorFuncs()).Parse(text)
	if err != nil {
		return nil, err
	}

	for _, t := range parsed.Templates() {
		if t.Tree == nil || t.Root == nil {
			continue
		}

		if inspect != nil {
			inspect(t.Tree)
		}

		// Without loops and calls, one execution executes each node at most once, and Parse limits the nodes.
		if len(parsed.Templates()) == 1 && !repeatsNodes(t.Root) && out.limits.Steps >= DefaultSteps {
			continue
		}

		if err := insertCounters(t.Root); err != nil {
			return nil, err
		}
	}

	out.parsed = parsed

	return out, nil
}

// Execute executes the template with data and returns the output. Errors are those of text/template
// and of the functions. They wrap a *LimitError if a limit was exceeded.
func (t *Template) Execute(data any) (string, error) {
	c, err := t.acquireCopy()
	if err != nil {
		return "", err
	}

	// If the execution panics, the copy is not returned to the pool.
	out := limitedBuffer{limit: t.limits.Output}
	err = c.template.Execute(&out, data)

	t.copies.Put(c)

	if err != nil {
		return "", err
	}

	return out.String(), nil
}

// acquireCopy returns a copy with an unused budget.
func (t *Template) acquireCopy() (*templateCopy, error) {
	if c, ok := t.copies.Get().(*templateCopy); ok {
		*c.budget = Budget{limits: t.limits}

		return c, nil
	}

	budget := &Budget{limits: t.limits}

	copied, err := t.parsed.Clone()
	if err != nil {
		return nil, fmt.Errorf("copy template: %w", err)
	}

	return &templateCopy{template: copied.Funcs(t.funcs(budget)), budget: budget}, nil
}

// authorFuncs returns the functions that the caller adds, for parsing.
func (t *Template) authorFuncs() template.FuncMap { return t.functions(&Budget{limits: t.limits}) }

// funcs returns the functions for executions, which count on the budget.
func (t *Template) funcs(budget *Budget) template.FuncMap {
	out := builtins(budget)
	maps.Copy(out, t.functions(budget))

	return out
}

// builtins returns replacements for Go's functions that create texts, and the counting functions.
func builtins(budget *Budget) template.FuncMap {
	withLimit := func(f func(...any) string, growth int) func(...any) (string, error) {
		return func(args ...any) (string, error) {
			if err := budget.CheckWork(saturatingMul(MaxPrintedSize(args...), growth)); err != nil {
				return "", err
			}

			return budget.CountWork(f(args...))
		}
	}

	return template.FuncMap{
		"print":    withLimit(fmt.Sprint, 1),
		"println":  withLimit(fmt.Sprintln, 1),
		"html":     withLimit(template.HTMLEscaper, perEscaped),
		"js":       withLimit(template.JSEscaper, perEscaped),
		"urlquery": withLimit(template.URLQueryEscaper, perEscaped),
		"printf": func(format string, args ...any) (string, error) {
			if err := budget.CheckWork(maxFormattedSize(format, args)); err != nil {
				return "", err
			}

			return budget.CountWork(fmt.Sprintf(format, args...))
		},
		stepFunction: budget.countSteps, enterFunction: budget.enterTemplate, leaveFunction: budget.leaveTemplate,
	}
}

// insertCounters inserts calls of the counting functions into a template.
func insertCounters(root *parse.ListNode) error {
	enter, err := newCallNode(enterFunction)
	if err != nil {
		return err
	}

	leave, err := newCallNode(leaveFunction)
	if err != nil {
		return err
	}

	nodes, err := countNodes(root)
	if err != nil {
		return err
	}

	if err := insertStepCounter(root, nodes); err != nil {
		return err
	}

	root.Nodes = append(append([]parse.Node{enter}, root.Nodes...), leave)

	return nil
}

// repeatsNodes reports whether a list has a loop or a call of a template.
func repeatsNodes(list *parse.ListNode) bool {
	if list == nil {
		return false
	}

	return slices.ContainsFunc(list.Nodes, func(n parse.Node) bool {
		switch n := n.(type) {
		case *parse.RangeNode, *parse.TemplateNode:
			return true
		case *parse.IfNode:
			return repeatsNodes(n.List) || repeatsNodes(n.ElseList)
		case *parse.WithNode:
			return repeatsNodes(n.List) || repeatsNodes(n.ElseList)
		default:
			return false
		}
	})
}

// newCallNode returns a node that calls a counting function.
func newCallNode(text string) (parse.Node, error) {
	known := map[string]any{stepFunction: true, enterFunction: true, leaveFunction: true}

	trees, err := parse.Parse("count", "{{ "+text+" }}", "", "", known)
	if err != nil {
		return nil, fmt.Errorf("parse counting call: %w", err)
	}

	return trees["count"].Root.Nodes[0], nil
}

// insertStepCounter inserts a call at the start of a list. The call counts the nodes and itself.
func insertStepCounter(list *parse.ListNode, nodes int) error {
	step, err := newCallNode(stepFunction + " " + strconv.Itoa(nodes+1))
	if err != nil {
		return err
	}

	list.Nodes = append([]parse.Node{step}, list.Nodes...)

	return nil
}

// countNodes inserts a counter into the body of each loop, and returns the maximum number of nodes that
// one execution of the list executes outside of these bodies.
func countNodes(list *parse.ListNode) (int, error) {
	if list == nil {
		return 0, nil
	}

	nodes := len(list.Nodes)

	for _, n := range list.Nodes {
		inner, err := countInnerNodes(n)
		if err != nil {
			return 0, err
		}

		nodes += inner
	}

	return nodes, nil
}

func countInnerNodes(n parse.Node) (int, error) {
	switch n := n.(type) {
	case *parse.IfNode:
		return countBranchNodes(&n.BranchNode)
	case *parse.WithNode:
		return countBranchNodes(&n.BranchNode)
	case *parse.RangeNode:
		nodes, err := countNodes(n.List)
		if err != nil {
			return 0, err
		}

		if err := insertStepCounter(n.List, nodes); err != nil {
			return 0, err
		}

		return countNodes(n.ElseList)
	default:
		return 0, nil
	}
}

func countBranchNodes(n *parse.BranchNode) (int, error) {
	thenNodes, err := countNodes(n.List)
	if err != nil {
		return 0, err
	}

	elseNodes, err := countNodes(n.ElseList)

	return max(thenNodes, elseNodes), err
}

// limitedBuffer is a buffer with a maximum size.
type limitedBuffer struct {
	bytes.Buffer

	limit int
}

// Write appends p. It returns a LimitError and appends nothing if the limit would be exceeded.
func (l *limitedBuffer) Write(p []byte) (int, error) {
	if len(p) > l.limit-l.Len() {
		return 0, &LimitError{Kind: OutputLimit, Limit: l.limit}
	}

	return l.Buffer.Write(p)
}

// AsLimitError returns the LimitError in err's chain, and false if there is none.
func AsLimitError(err error) (*LimitError, bool) {
	return errors.AsType[*LimitError](err)
}
