// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/kit/bounds"
)

// Tags of YAML.
const (
	tagString = "!!str"
	tagNull   = "!!null"
	tagMerge  = "!!merge"
)

// maxDepth is the maximum depth of a tree.
const maxDepth = 100

// TreeOptions limits a tree after its aliases are expanded.
type TreeOptions struct {
	// MaxNodes is the maximum number of keys and values, and MaxBytes that of the bytes in them.
	MaxNodes, MaxBytes int
	// RequiresStringKeys makes a key that is not a string a problem. Otherwise a key is any single value.
	RequiresStringKeys bool
}

// ParseTree parses a text with one YAML document. In the tree, each alias is replaced by a copy of its
// value, and each merge key (<<) by the entries that it adds to its mapping. The tree of an empty text
// or of null is an empty mapping.
//
// An error about the limits wraps [bounds.ErrTooLarge]. Other errors are of type Problems, with all
// problems and without a file.
func ParseTree(text []byte, options TreeOptions) (*yaml.Node, error) {
	empty := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: 1, Column: 1}
	decoder := yaml.NewDecoder(bytes.NewReader(text))

	var first, second yaml.Node

	if err := decoder.Decode(&first); errors.Is(err, io.EOF) {
		return empty, nil
	} else if err != nil {
		return nil, Problems{syntaxProblem(err)}
	}

	if err := decoder.Decode(&second); err == nil {
		return nil, Problems{{
			Line: second.Line, Column: max(second.Column, 1), Message: "a second YAML document",
			Hint: "only one document is allowed: remove the line --- and everything after it",
		}}
	} else if !errors.Is(err, io.EOF) {
		return nil, Problems{syntaxProblem(err)}
	}

	expander := expander{options: options, nodes: options.MaxNodes, bytes: options.MaxBytes}
	root := expander.expand(first.Content[0], 0)

	if expander.isTooLarge {
		return nil, fmt.Errorf("%w: it is more than %d levels deep, or its aliases expand to more than %d keys and values or %d bytes",
			bounds.ErrTooLarge, maxDepth, options.MaxNodes, options.MaxBytes)
	}

	if isNull(root) {
		root = empty
	}

	return root, expander.problems.Err()
}

var syntaxLine = regexp.MustCompile(`^(?:yaml: )?line (\d+)(?:, column (\d+))?: `)

// syntaxProblem converts an error of the parser into a Problem with its line.
func syntaxProblem(err error) Problem {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	// The parser reports no line if it is the first line, or if an anchor is unknown.
	problem := Problem{Line: 1, Column: 1, Message: "invalid YAML: " + text}

	if match := syntaxLine.FindStringSubmatch(text); match != nil {
		problem.Line, _ = strconv.Atoi(match[1])
		problem.Column, _ = strconv.Atoi(match[2])
		problem.Column = max(problem.Column, 1)
		problem.Message = "invalid YAML: " + text[len(match[0]):]
	} else if strings.HasPrefix(text, "unknown anchor") {
		problem.Line, problem.Column = 0, 0
	}

	return problem
}

// expander expands aliases and merge keys.
type expander struct {
	options TreeOptions
	// nodes and bytes are how many the tree may still get.
	nodes, bytes int
	isTooLarge   bool
	problems     Problems
}

func (e *expander) problemf(at *yaml.Node, format string, args ...any) {
	e.problems = append(e.problems, Problem{Line: at.Line, Column: at.Column, Message: fmt.Sprintf(format, args...)})
}

// expand copies a node with its aliases expanded. If the tree is too deep or too large, the copy is incomplete.
func (e *expander) expand(in *yaml.Node, depth int) *yaml.Node {
	e.nodes--
	e.bytes -= len(in.Value)
	e.isTooLarge = e.isTooLarge || depth > maxDepth || e.nodes < 0 || e.bytes < 0

	out := *in
	out.Anchor, out.Alias, out.Content = "", nil, nil

	switch {
	case e.isTooLarge:
		// The copy stays without content.
	case in.Kind == yaml.AliasNode:
		e.nodes++

		return e.expand(in.Alias, depth+1)
	case in.Kind == yaml.MappingNode:
		e.expandMapping(&out, in, depth)
	default:
		for _, item := range in.Content {
			out.Content = append(out.Content, e.expand(item, depth+1))
		}
	}

	return &out
}

// expandMapping copies the entries of a mapping, and then adds those of the mappings that merge keys refer
// to. An entry of the mapping overrides a merged entry, and an earlier merged mapping a later one.
func (e *expander) expandMapping(out, in *yaml.Node, depth int) {
	var merges []*yaml.Node

	lines := map[string]int{} // by key

	for i := 0; i+1 < len(in.Content); i += 2 {
		key, value := e.expand(in.Content[i], depth+1), in.Content[i+1]

		switch tag := key.ShortTag(); {
		case tag == tagMerge:
			merges = append(merges, value)
		case e.isTooLarge:
			return
		case e.options.RequiresStringKeys && (key.Kind != yaml.ScalarNode || tag != tagString):
			e.problemf(key, "key %s is not a string: put it in quotes", key.Value)
		case key.Kind != yaml.ScalarNode:
			e.problemf(key, "a key must be a single value")
		case lines[key.Value] > 0:
			e.problemf(key, "duplicate key %s, first used in line %d", key.Value, lines[key.Value])
		default:
			lines[key.Value] = key.Line
			out.Content = append(out.Content, key, e.expand(value, depth+1))
		}
	}

	for _, merge := range merges {
		e.merge(out, e.expand(merge, depth+1), lines)
	}
}

// merge adds the entries of a merge key's mappings to out, unless out already has the key.
func (e *expander) merge(out, from *yaml.Node, lines map[string]int) {
	sources := []*yaml.Node{from}
	if from.Kind == yaml.SequenceNode {
		sources = from.Content
	}

	for _, source := range sources {
		if source.Kind != yaml.MappingNode {
			e.problemf(source, "<< requires a mapping or a list of mappings")

			continue
		}

		for key, value := range entries(source) {
			if lines[key.Value] == 0 {
				lines[key.Value] = key.Line
				out.Content = append(out.Content, key, value)
			}
		}
	}
}

// entries returns the keys and values of a mapping.
func entries(mapping *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(key, value *yaml.Node) bool) {
		for i := 0; mapping.Kind == yaml.MappingNode && i+1 < len(mapping.Content); i += 2 {
			if !yield(mapping.Content[i], mapping.Content[i+1]) {
				return
			}
		}
	}
}

// find returns the value of a key of a mapping, or nil if there is none.
func find(mapping *yaml.Node, name string) *yaml.Node {
	for key, value := range entries(mapping) {
		if key.Value == name {
			return value
		}
	}

	return nil
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == tagNull }

// Lookup returns the value of a key of a mapping in a tree. It returns nil if the key is missing or its
// value is null.
func Lookup(mapping *yaml.Node, name string) *yaml.Node {
	if value := find(mapping, name); value != nil && !isNull(value) {
		return value
	}

	return nil
}

// SetKey replaces the value of a key of a mapping, or adds the key at the end.
func SetKey(mapping *yaml.Node, name string, value *yaml.Node) {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == name {
			mapping.Content[i+1] = value

			return
		}
	}

	mapping.Content = append(mapping.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: tagString, Value: name}, value)
}

// Encode encodes a value or a tree as YAML with an indent of two spaces. It changes the style of texts in a
// tree that the library would write in a form that it cannot parse.
func Encode(value any) ([]byte, error) {
	if tree, ok := value.(*yaml.Node); ok {
		setStyles(tree)
	}

	var out bytes.Buffer

	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)

	if err := encoder.Encode(value); err != nil {
		return nil, fmt.Errorf("encode YAML: %w", err)
	}

	if err := encoder.Close(); err != nil {
		return nil, fmt.Errorf("encode YAML: %w", err)
	}

	return out.Bytes(), nil
}

// setStyles sets the style of multi-line texts. Folded texts become literal texts. Texts that a block cannot represent,
// because they start with a blank or have line ends other than \n, are written in double quotes.
func setStyles(n *yaml.Node) {
	const (
		block      = yaml.FoldedStyle | yaml.LiteralStyle
		lineEnds   = "\r\u0085\u2028\u2029"
		whitespace = " \t\n"
	)

	isBlock := n.Style&block != 0

	switch {
	case n.Kind != yaml.ScalarNode || !isBlock && !strings.ContainsAny(n.Value, "\n"+lineEnds):
		// The style is right: the node is no text, or has one line.
	case isBlock && n.Value != "" && !strings.Contains(whitespace, n.Value[:1]) && !strings.ContainsAny(n.Value, lineEnds):
		n.Style = n.Style&^block | yaml.LiteralStyle
	default:
		n.Style = n.Style&^(block|yaml.SingleQuotedStyle) | yaml.DoubleQuotedStyle
	}

	for _, child := range n.Content {
		setStyles(child)
	}
}
