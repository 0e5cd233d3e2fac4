// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// Limits of a rendered block.
const (
	maxBlockNodes = 400_000
	maxBlockBytes = 16 * maxRendered
)

// block is a manifest that is a text. The text is parsed with slots in place of values, and each value then becomes
// one scalar or a part of one. A value can't add keys or items.
type block struct {
	*Template
}

type blockError struct {
	line    int
	message string
	// actions are the actions in the line, if the message does not name them.
	actions string
	// detail is the message of the YAML parser, if there is one. It can contain parts of values.
	detail string
}

// Error returns the line and the message. The text contains no values.
func (e *blockError) Error() string {
	return fmt.Sprintf("line %d%s: %s", e.line, e.formatActions(), e.message)
}

// describeInSample returns the problem with the parser's detail, for a block whose values are those of a sample.
func (e *blockError) describeInSample(slots *slots) string {
	return slots.fill(cmp.Or(e.detail, e.message)) + e.formatActions()
}

func (e *blockError) formatActions() string {
	if e.actions == "" {
		return ""
	}

	return ", near " + e.actions
}

func (b *block) render(vars map[string]any) (map[string]any, error) {
	text, err := b.Render(vars)
	if err != nil {
		return nil, err
	}

	filler := blockFiller{slots: b.slots}

	return filler.parse(text)
}

type blockFiller struct {
	slots *slots
	// isSample is true if the values are those of a sample.
	isSample bool
	// loneActions are the actions that have a line of their own.
	loneActions []loneAction
}

// loneAction is an action that has a line of its own, and is not in quotes.
type loneAction struct {
	line   int
	source string
}

func (f *blockFiller) parse(text string) (map[string]any, error) {
	root, err := strictyaml.ParseTree([]byte(text),
		strictyaml.TreeOptions{MaxNodes: maxBlockNodes, MaxBytes: maxBlockBytes, RequiresStringKeys: true})

	var problems strictyaml.Problems
	if errors.As(err, &problems) {
		return nil, f.newNotObjectError(text, problems[0].Line, problems[0].Message)
	} else if err != nil {
		return nil, err
	}

	if root.Kind != yaml.MappingNode {
		return nil, f.newNotObjectError(text, root.Line, "it is not a YAML object")
	}

	value, err := f.fillNode(root, root.Line)
	if err != nil {
		return nil, err
	}

	out, _ := value.(map[string]any)

	return out, nil
}

// newNotObjectError returns the error of a line that the YAML parser rejects.
func (f *blockFiller) newNotObjectError(text string, line int, detail string) error {
	out := &blockError{line: line, message: "the text is not a YAML object", detail: detail}

	if lines := strings.Split(text, "\n"); line >= 1 && line <= len(lines) {
		out.actions = f.slots.listSources(lines[line-1])
	}

	return out
}

// fillNode returns a node as a plain value. keyLine is the line of the node's key.
func (f *blockFiller) fillNode(in *yaml.Node, keyLine int) (any, error) {
	if f.slots.listSources(in.Tag) != "" {
		return nil, &blockError{line: in.Line, message: "a value can't be a tag: " + f.slots.listSources(in.Tag)}
	}

	switch in.Kind {
	case yaml.MappingNode:
		return f.fillMapping(in)
	case yaml.SequenceNode:
		out := make([]any, len(in.Content))

		for i, item := range in.Content {
			var err error
			if out[i], err = f.fillNode(item, item.Line); err != nil {
				return nil, err
			}
		}

		return out, nil
	default:
		return f.fillScalar(in, keyLine)
	}
}

func (f *blockFiller) fillMapping(in *yaml.Node) (any, error) {
	out := make(map[string]any, len(in.Content)/2) //nolint:mnd // keys and values

	for i := 0; i+1 < len(in.Content); i += 2 {
		key := in.Content[i]

		name := f.slots.fill(key.Value)
		if _, ok := out[name]; ok && !f.isSample {
			return nil, &blockError{line: key.Line, message: fmt.Sprintf("two keys of line %d are equal", key.Line)}
		}

		value, err := f.fillNode(in.Content[i+1], key.Line)
		if err != nil {
			return nil, err
		}

		out[name] = value
	}

	return out, nil
}

// fillScalar fills a scalar. An unquoted scalar gets the type that YAML gives to its text.
func (f *blockFiller) fillScalar(in *yaml.Node, keyLine int) (any, error) {
	parts := f.slots.split(in.Value)
	isWhole := len(parts) == 1 && parts[0].source != ""

	if !isWhole && f.slots.listSources(in.Value) == "" {
		return strictyaml.ToAny(in), nil
	}

	filled := *in
	filled.Value = f.slots.fill(in.Value)

	const quoted = yaml.SingleQuotedStyle | yaml.DoubleQuotedStyle | yaml.LiteralStyle | yaml.FoldedStyle
	if in.Style&quoted != 0 {
		return strictyaml.ToAny(&filled), nil
	}

	if isWhole && in.Line > keyLine {
		f.loneActions = append(f.loneActions, loneAction{line: in.Line, source: parts[0].source})

		if isStructure(filled.Value) {
			return nil, &blockError{line: in.Line, message: valueErrorf(parts[0], "is a mapping or a list, and can only be one "+
				"string: write its fields in the manifest, or put the template in quotes").Error()}
		}
	}

	if isWhole {
		if text, ok := unquote(filled.Value); ok {
			return text, nil
		}
	}

	if filled.Value != "" && strings.TrimSpace(filled.Value) != filled.Value {
		return filled.Value, nil
	}

	if in.Style&yaml.TaggedStyle == 0 {
		filled.Tag = "" // the tag is that of the slot's text
	}

	return strictyaml.ToAny(&filled), nil
}

// isStructure reports whether a text is a YAML mapping or list.
func isStructure(text string) bool {
	var node yaml.Node

	return yaml.Unmarshal([]byte(text), &node) == nil && len(node.Content) == 1 && node.Content[0].Kind != yaml.ScalarNode
}

// unquote returns the value of a text that is one quoted YAML scalar, as the functions quote and printf return.
func unquote(text string) (string, bool) {
	if text == "" || !strings.ContainsAny(text[:1], `"'`) || strings.Contains(text, "\n") {
		return "", false
	}

	var node yaml.Node
	if yaml.Unmarshal([]byte(text), &node) != nil || len(node.Content) != 1 {
		return "", false
	}

	scalar := node.Content[0]
	hasComment := node.FootComment+node.LineComment+node.HeadComment+scalar.FootComment+scalar.LineComment+scalar.HeadComment != ""

	return scalar.Value, scalar.Kind == yaml.ScalarNode && !hasComment
}

// compileBlock compiles a manifest that is a text. If the text has no control structures, it also checks the object
// that the text becomes.
func (l *loader) compileBlock(keyPath strictyaml.Path, text string) *Manifest {
	found := &slots{}

	compiled := l.compileWithSlots(keyPath, text, found)
	if compiled == nil {
		return nil
	}

	switch {
	case compiled.IsConstant():
		l.checkSample(keyPath, text, compiled.slots)
	case !found.hasControl:
		l.checkSample(keyPath, found.sample, compiled.slots)
	}

	return &Manifest{block: &block{compiled}}
}

// checkSample checks the object that a block becomes with sample values.
func (l *loader) checkSample(keyPath strictyaml.Path, sample string, slots *slots) {
	filler := blockFiller{slots: slots, isSample: true}
	object, err := filler.parse(sample)

	var lineErr *blockError

	switch {
	case errors.As(err, &lineErr):
		l.problems = append(l.problems,
			l.problemInLine(keyPath, lineErr.line, "invalid manifest: %s", lineErr.describeInSample(slots)).
				WithHint("a value is one string or a part of one, and can't add keys or items"))
	case err != nil:
		l.addProblem(keyPath, "invalid manifest: %v", err)
	default:
		if err := checkObject(object); err != nil {
			l.addProblem(keyPath, "%v", err)
		}
	}

	for _, action := range filler.loneActions {
		l.task.Warnings = append(l.task.Warnings, l.problemInLine(keyPath, action.line,
			"%s has a line of its own, and is one string there", action.source).
			WithHint("write the keys or items in the manifest, with a template for each value"))
	}
}

// problemInLine returns a problem in a line of a text.
func (l *loader) problemInLine(keyPath strictyaml.Path, line int, format string, args ...any) strictyaml.Problem {
	out, isLocated := l.doc.ProblemInside(keyPath, line, 1, format, args...)

	switch {
	case isLocated:
	case len(keyPath) == 0:
		out.Line, out.Column = line, 1 // the text is a file
	default:
		out.Message += fmt.Sprintf(", in line %d of the text", line)
	}

	return out
}
