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
	"time"
	"unicode/utf8"

	template "github.com/DataDog/datadog-agent/pkg/template/text"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/templates"
)

// Limits of one template, in bytes.
const (
	// maxRendered limits the rendered text.
	maxRendered = 4 << 20
	// maxWork limits the total size of the strings that the template's functions return.
	maxWork = 2 * maxRendered
)

const nowVariable = "now"

var (
	errNoValue     = errors.New("a variable has no value; set one with default")
	errInvalidUTF8 = errors.New("a value is not valid UTF-8")
)

// Template is a string that may contain Go templates. It is safe for concurrent use.
type Template struct {
	source string
	// compiled is nil for a string without templates.
	compiled *templates.Template
	// references are the variables that the template uses. readsAll is true if it also uses all variables as one value.
	references []variableRef
	readsAll   bool
	// readsClock is true if the template calls now. stopped is then the same template with a stoppedClock.
	readsClock bool
	stopped    *Template
	clock      clock.PassiveClock
	// plain are the parts of a template that only prints variables.
	plain []plainPart
	// slots is set if the rendered text has slots in place of values.
	slots *slots
}

// stoppedClock is a clock that always returns the zero time.
type stoppedClock struct{ clock.PassiveClock }

func (stoppedClock) Now() time.Time { return time.Time{} }

// StopClock returns the variables with which templates render the same text whenever they are rendered.
func StopClock(vars map[string]any) map[string]any {
	out := maps.Clone(vars)
	out[nowVariable] = instant{}

	return out
}

// variableRef is a variable that a template uses, with the field that the template reads, and the path below the variable.
type variableRef struct {
	variable, field string
	path            []string
}

// newTemplate parses source as a Go template, and collects the variables that it uses. Without "{{", source is
// plain text and is not parsed. A parse error begins with the number of its line. With slots, which may be nil, the
// rendered text has a slot in place of each value.
func newTemplate(source string, clk clock.PassiveClock, slots *slots) (*Template, error) {
	out := &Template{source: source, clock: clk}
	if !strings.Contains(source, "{{") {
		return out, nil
	}

	if out.slots = slots; slots != nil && strings.ContainsAny(source, slotStart+slotEnd) {
		return nil, errReservedCharacter
	}

	limits := templates.Limits{Output: maxRendered, Work: maxWork}
	newFuncMap := func(budget *templates.Budget) template.FuncMap { return newFunctions(clk, budget) }

	compiled, err := templates.Parse("", source, limits, newFuncMap, func(tree *parse.Tree) {
		if tree.Name == "" {
			out.plain = newPlainParts(tree.Root)
		}

		// A template that the source defines has a name, and its dot is the value that its caller passes.
		w := walker{dotIsRoot: tree.Name == "", slots: slots}
		if tree.Name == "" {
			w.walkRoot(tree.Root)
		} else {
			w.walkNode(tree.Root)
		}

		out.references = append(out.references, w.references...)
		out.readsClock = out.readsClock || w.readsClock
		out.readsAll = out.readsAll || w.readsAll
	})
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(shortenPosition(err), "template: "))
	}

	out.compiled = compiled

	if _, isStopped := clk.(stoppedClock); out.readsClock && !isStopped {
		out.stopped, err = newTemplate(source, stoppedClock{clk}, slots.renew())
	}

	return out, err
}

// positionPattern matches the position at the start of an error of text/template, for example "template: :3:14: ".
var positionPattern = regexp.MustCompile(`^template: :(\d+)(?::\d+)?: `)

// shortenPosition returns the text of an error of text/template, with a position such as "line 3: ".
func shortenPosition(err error) string {
	return positionPattern.ReplaceAllString(err.Error(), "line $1: ")
}

// String returns the text of the template.
func (t *Template) String() string { return t.source }

// IsConstant reports whether the string contains no templates.
func (t *Template) IsConstant() bool { return t.compiled == nil }

// Variables returns the sorted names of the variables that the template uses.
func (t *Template) Variables() []string {
	var out []string
	for _, reference := range t.references {
		out = append(out, reference.variable)
	}

	slices.Sort(out)

	return slices.Compact(out)
}

// Render renders the template with the values of vars. Its error contains no values.
func (t *Template) Render(vars map[string]any) (string, error) {
	if t.compiled == nil {
		return t.source, nil
	}

	// The text of a template with slots must have them.
	if t.slots == nil {
		if pieces, isPlain := t.renderPlain(vars); isPlain {
			return joinPieces(pieces), nil
		}
	}

	return t.execute(vars)
}

// execute renders the template with the template engine.
func (t *Template) execute(vars map[string]any) (string, error) {
	_, isStopped := vars[nowVariable]
	if isStopped && t.stopped != nil {
		return t.stopped.execute(vars)
	}

	if !isStopped && t.readsNow() {
		vars = maps.Clone(vars)
		if vars == nil {
			vars = map[string]any{}
		}

		vars[nowVariable] = instant{t.clock.Now().UTC()}
	}

	out, err := t.compiled.Execute(vars)
	if reached, ok := templates.AsLimitError(err); ok {
		return "", fmt.Errorf("render template: %w", reached)
	}

	for _, cause := range []error{errNoValue, errInvalidUTF8} {
		if errors.Is(err, cause) {
			return "", fmt.Errorf("render template %q: %w", t.source, cause)
		}
	}

	if err != nil {
		return "", fmt.Errorf("render template: %s", shortenPosition(err))
	}

	// JSON can't have invalid UTF-8, and encoding/json would change it.
	if !utf8.ValidString(out) {
		return "", fmt.Errorf("render template %q: %w", t.source, errInvalidUTF8)
	}

	return out, nil
}

// readsNow reports whether the template uses the variable now.
func (t *Template) readsNow() bool {
	return slices.ContainsFunc(t.references, func(reference variableRef) bool { return reference.variable == nowVariable })
}

// walker finds the variables that a template uses, and rewrites the template's tree. It renames functions whose
// text is piped in, and appends functions of this package to pipes of actions and ranges.
type walker struct {
	// dotIsRoot is true if the dot has the variables of the template as its fields. It is false inside
	// range and with, and in templates that the source defines.
	dotIsRoot  bool
	references []variableRef
	readsAll   bool
	readsClock bool
	// slots is nil if the template prints values.
	slots *slots
}

// walkRoot handles the nodes of the whole template, and records its sample.
func (w *walker) walkRoot(root *parse.ListNode) {
	for _, node := range root.Nodes {
		w.walkNode(node)

		if w.slots != nil {
			w.slots.addSample(node)
		}
	}
}

func (w *walker) addReference(names []string) {
	found := variableRef{variable: names[0], path: names[1:]}
	if len(names) > 1 {
		found.field = names[1]
	}

	w.references = append(w.references, found)
}

// walkNode handles a node and all nodes below it. In range and with, the dot is not the root, so fields of
// the dot are no variables.
func (w *walker) walkNode(in parse.Node) {
	switch typed := in.(type) {
	case *parse.ListNode:
		if typed != nil {
			for _, child := range typed.Nodes {
				w.walkNode(child)
			}
		}
	case *parse.ActionNode:
		source := typed.String()
		w.walkNode(typed.Pipe)

		switch {
		case len(typed.Pipe.Decl) > 0:
		case w.slots != nil:
			appendToPipe(typed.Pipe, slotFunction, w.slots.add(source))
		default:
			appendToPipe(typed.Pipe, "printed")
		}
	case *parse.PipeNode:
		w.walkPipe(typed)
	case *parse.FieldNode:
		if w.dotIsRoot {
			w.addReference(typed.Ident)
		}
	case *parse.DotNode:
		w.readsAll = w.readsAll || w.dotIsRoot
	case *parse.VariableNode:
		switch {
		case typed.Ident[0] != "$":
		case len(typed.Ident) > 1:
			w.addReference(typed.Ident[1:])
		default:
			w.readsAll = true
		}
	case *parse.IdentifierNode:
		w.readsClock = w.readsClock || typed.Ident == nowVariable
	case *parse.ChainNode:
		w.walkNode(typed.Node)

		if function, ok := typed.Node.(*parse.IdentifierNode); ok {
			w.addReference(append([]string{function.Ident}, typed.Field...)) // such as now.Unix
		}
	case *parse.IfNode:
		w.walkBranch(&typed.BranchNode, w.dotIsRoot)
	case *parse.RangeNode:
		w.walkBranch(&typed.BranchNode, dotIsElement)
		appendToPipe(typed.Pipe, "ranged")
	case *parse.WithNode:
		w.walkBranch(&typed.BranchNode, dotIsElement)
	case *parse.TemplateNode:
		w.walkPipe(typed.Pipe)
	}
}

// appendToPipe appends a function of this package to a pipe. The arguments precede the piped value.
func appendToPipe(pipe *parse.PipeNode, name string, args ...parse.Node) {
	call := []parse.Node{parse.NewIdentifier(pipedPrefix + name).SetPos(pipe.Pos).SetTree(nil)}
	pipe.Cmds = append(pipe.Cmds, &parse.CommandNode{NodeType: parse.NodeCommand, Pos: pipe.Pos, Args: append(call, args...)})
}

// dotIsElement is the value of dotIsRoot in range and with, which set the dot to another value.
const dotIsElement = false

// walkBranch walks a branch. dotIsRoot applies to its list. Its pipe and its else list keep w.dotIsRoot.
func (w *walker) walkBranch(in *parse.BranchNode, dotIsRoot bool) {
	w.walkPipe(in.Pipe)

	outside := w.dotIsRoot
	w.dotIsRoot = dotIsRoot
	w.walkNode(in.List)
	w.dotIsRoot = outside
	w.walkNode(in.ElseList)
}

func (w *walker) walkPipe(in *parse.PipeNode) {
	if in == nil {
		return
	}

	for i, command := range in.Cmds {
		for j, arg := range command.Args {
			if name, ok := arg.(*parse.IdentifierNode); ok && j == 0 && i > 0 && slices.Contains(textFirstFunctions(), name.Ident) {
				name.Ident = pipedPrefix + name.Ident
			}

			w.walkNode(arg)
		}
	}
}
