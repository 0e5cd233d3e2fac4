// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"text/template/parse"

	template "github.com/DataDog/datadog-agent/pkg/template/text"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/templates"
)

// Bounds of one template, in bytes.
const (
	// maxRendered bounds what it renders to.
	maxRendered = 4 << 20
	// maxWork bounds all texts that its functions make.
	maxWork = 2 * maxRendered
)

const nowVariable = "now"

var errNoValue = errors.New("a variable in it has no value: give it one with default")

// Template is a text with Go templates in it. It is safe for concurrent use.
type Template struct {
	source string
	// compiled is nil for a text without templates.
	compiled *templates.Template
	// uses are the variables it names.
	uses []use
	// clocked says that it calls now.
	clocked bool
	clock   clock.PassiveClock
}

// use is a variable that a template names, with the field it asks it for.
type use struct {
	variable, field string
}

// newTemplate parses a text; the error says where in it.
func newTemplate(source string, clk clock.PassiveClock) (*Template, error) {
	out := &Template{source: source, clock: clk}
	if !strings.Contains(source, "{{") {
		return out, nil
	}

	limits := templates.Limits{Output: maxRendered, Work: maxWork}
	of := func(budget *templates.Budget) template.FuncMap { return functions(clk, budget) }

	compiled, err := templates.Parse("", source, limits, of, func(one *parse.Tree) {
		walk := walker{atRoot: one.Name == ""}
		walk.node(one.Root)
		out.uses = append(out.uses, walk.uses...)
		out.clocked = out.clocked || walk.clocked
	})
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(templatePlace.ReplaceAllString(err.Error(), "line $1: "), "template: "))
	}

	out.compiled = compiled

	return out, nil
}

var templatePlace = regexp.MustCompile(`^template: :(\d+)(?::\d+)?: `)

// String is the text.
func (t *Template) String() string { return t.source }

// Constant says whether the text has no templates.
func (t *Template) Constant() bool { return t.compiled == nil }

// Variables are the names of the variables it uses, sorted.
func (t *Template) Variables() []string {
	var out []string
	for _, one := range t.uses {
		out = append(out, one.variable)
	}

	slices.Sort(out)

	return slices.Compact(out)
}

// Render gives the text with the values of vars. Its error holds none of them.
func (t *Template) Render(vars map[string]any) (string, error) {
	if t.compiled == nil {
		return t.source, nil
	}

	if _, ok := vars[nowVariable]; !ok && slices.ContainsFunc(t.uses, func(u use) bool { return u.variable == nowVariable }) {
		vars = maps.Clone(vars)
		if vars == nil {
			vars = map[string]any{}
		}

		vars[nowVariable] = instant{t.clock.Now().UTC()}
	}

	out, err := t.compiled.Execute(vars)
	if reached, ok := templates.Limit(err); ok {
		return "", fmt.Errorf("render template: %w", reached)
	}

	if errors.Is(err, errNoValue) {
		return "", fmt.Errorf("render template %q: %w", t.source, errNoValue)
	} else if err != nil {
		return "", fmt.Errorf("render template: %s", templatePlace.ReplaceAllString(err.Error(), "line $1: "))
	}

	return out, nil
}

// walker finds the variables that a template names, puts functions that get their text
// piped in right, and puts functions of ours after what is printed and ranged over, and in the
// place of methods.
type walker struct {
	// atRoot says whether the dot is what the template was called with: not so inside
	// of range and with.
	atRoot  bool
	uses    []use
	clocked bool
}

func (w *walker) use(names []string) {
	one := use{variable: names[0]}
	if len(names) > 1 {
		one.field = names[1]
	}

	w.uses = append(w.uses, one)
}

func (w *walker) node(in parse.Node) {
	switch typed := in.(type) {
	case *parse.ListNode:
		if typed != nil {
			for _, one := range typed.Nodes {
				w.node(one)
			}
		}
	case *parse.ActionNode:
		w.node(typed.Pipe)

		if len(typed.Pipe.Decl) == 0 {
			pipeInto(typed.Pipe, "printed")
		}
	case *parse.PipeNode:
		w.pipe(typed)
	case *parse.FieldNode:
		if w.atRoot {
			w.use(typed.Ident)
		}
	case *parse.VariableNode:
		if typed.Ident[0] == "$" && len(typed.Ident) > 1 {
			w.use(typed.Ident[1:])
		}
	case *parse.IdentifierNode:
		w.clocked = w.clocked || typed.Ident == nowVariable
	case *parse.ChainNode:
		w.node(typed.Node)
	case *parse.IfNode:
		w.branch(&typed.BranchNode, w.atRoot)
	case *parse.RangeNode:
		w.branch(&typed.BranchNode, false)
		pipeInto(typed.Pipe, "ranged")
	case *parse.WithNode:
		w.branch(&typed.BranchNode, false)
	case *parse.TemplateNode:
		w.pipe(typed.Pipe)
	}
}

// pipeInto makes a function of ours the last of a pipe.
func pipeInto(pipe *parse.PipeNode, name string) {
	last := parse.NewIdentifier(piped + name).SetPos(pipe.Pos).SetTree(nil)
	pipe.Cmds = append(pipe.Cmds, &parse.CommandNode{NodeType: parse.NodeCommand, Pos: pipe.Pos, Args: []parse.Node{last}})
}

func (w *walker) branch(in *parse.BranchNode, inside bool) {
	w.pipe(in.Pipe)

	outside := w.atRoot
	w.atRoot = inside
	w.node(in.List)
	w.atRoot = outside
	w.node(in.ElseList)
}

func (w *walker) pipe(in *parse.PipeNode) {
	if in == nil {
		return
	}

	for i, command := range in.Cmds {
		for j, arg := range command.Args {
			if name, ok := arg.(*parse.IdentifierNode); ok && j == 0 && i > 0 && slices.Contains(textFirst(), name.Ident) {
				name.Ident = piped + name.Ident
			}

			w.node(arg)
		}

		w.calls(command)
	}
}
