// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Limits of a file. Valid files are far smaller. A larger file is a mistake, or an attack with
// nested aliases.
const (
	maxBytes = 4 << 20
	maxNodes = 200_000
	maxDepth = 100
)

// Document is a parsed file with the position of each value.
type Document struct {
	file string
	root *node
	// lines are the lines of the file.
	lines []string
}

// node is a value after the resolution of aliases and merge keys.
type node struct {
	// kind is the kind of the YAML node: mapping, sequence or scalar.
	kind         yaml.Kind
	line, column int
	tag, text    string
	style        yaml.Style
	entries      []mapEntry
	items        []*node
}

// mapEntry is one entry of a mapping. Entries keep the order of the file.
type mapEntry struct {
	name         string
	line, column int
	value        *node
	// merged is true if the entry comes from a merge key.
	merged bool
}

// Parse parses a file with one document. The error is of type Problems. An empty file becomes an
// empty mapping.
func Parse(file string, data []byte) (*Document, error) {
	doc := &Document{file: file, root: &node{kind: yaml.MappingNode, line: 1, column: 1}}

	if len(data) > maxBytes {
		return nil, Problems{{File: file, Message: fmt.Sprintf("the file is larger than %d bytes", maxBytes)}}
	}

	doc.lines = strings.Split(string(data), "\n")
	decoder := yaml.NewDecoder(bytes.NewReader(data))

	var first, second yaml.Node

	if err := decoder.Decode(&first); errors.Is(err, io.EOF) {
		return doc, nil
	} else if err != nil {
		return nil, Problems{syntaxProblem(file, err)}
	}

	if err := decoder.Decode(&second); err == nil {
		return nil, Problems{{
			File: file, Line: second.Line, Column: max(second.Column, 1),
			Message: "a second document", Hint: "a file must have one document: remove the line --- and everything after it",
		}}
	} else if !errors.Is(err, io.EOF) {
		return nil, Problems{syntaxProblem(file, err)}
	}

	flat := flattener{file: file}
	if root := flat.flatten(first.Content[0], 0); root.tag != "!!null" {
		doc.root = root
	}

	return doc, flat.problems.Err()
}

var syntaxLine = regexp.MustCompile(`^(?:yaml: )?line (\d+)(?:, column (\d+))?: `)

// syntaxProblem converts an error of the parser into a Problem with its line.
func syntaxProblem(file string, err error) Problem {
	text := err.Error()
	// The parser does not report the line if it is the first line.
	problem := Problem{File: file, Line: 1, Column: 1, Message: "invalid YAML: " + strings.TrimPrefix(text, "yaml: ")}

	if match := syntaxLine.FindStringSubmatch(text); match != nil {
		problem.Line, _ = strconv.Atoi(match[1])
		problem.Column, _ = strconv.Atoi(match[2])
		problem.Column = max(problem.Column, 1)
		problem.Message = "invalid YAML: " + text[len(match[0]):]
	}

	return problem
}

// flattener resolves aliases and merge keys.
type flattener struct {
	file     string
	nodes    int
	problems Problems
}

func (f *flattener) problemf(at *yaml.Node, format string, args ...any) {
	f.problems = append(f.problems, Problem{File: f.file, Line: at.Line, Column: at.Column, Message: fmt.Sprintf(format, args...)})
}

// flatten copies a node with its aliases expanded. If the document is too deep or too large, flatten
// reports this once and leaves out the rest.
func (f *flattener) flatten(in *yaml.Node, depth int) *node {
	f.nodes++

	out := &node{kind: in.Kind, line: in.Line, column: in.Column, tag: in.ShortTag(), text: in.Value, style: in.Style}

	if depth > maxDepth || f.nodes > maxNodes {
		if f.nodes <= maxNodes+1 {
			f.problemf(in, "the file is nested deeper than %d or expands to more than %d values", maxDepth, maxNodes)
		}

		f.nodes = max(f.nodes, maxNodes+1)
		out.kind, out.tag = yaml.ScalarNode, "!!null"

		return out
	}

	switch in.Kind {
	case yaml.AliasNode:
		return f.flatten(in.Alias, depth+1)
	case yaml.SequenceNode:
		for _, item := range in.Content {
			out.items = append(out.items, f.flatten(item, depth+1))
		}
	case yaml.MappingNode:
		f.flattenMapping(out, in, depth)
	default:
	}

	return out
}

// flattenMapping copies the entries of a mapping, and then adds those of the mappings that merge keys (<<)
// refer to. Keys that are not strings and duplicate keys are problems.
func (f *flattener) flattenMapping(out *node, in *yaml.Node, depth int) {
	var merges []*yaml.Node

	for i := 0; i+1 < len(in.Content); i += 2 {
		name, value := in.Content[i], in.Content[i+1]
		if name.Kind == yaml.AliasNode {
			name = name.Alias
		}

		switch tag := name.ShortTag(); {
		case tag == "!!merge":
			merges = append(merges, value)
		case name.Kind != yaml.ScalarNode || tag != "!!str":
			f.problemf(name, "key %s is not a string: put it in quotes", name.Value)
		case out.findEntry(name.Value) != nil:
			f.problemf(name, "duplicate key %s, first used in line %d", name.Value, out.findEntry(name.Value).line)
		default:
			out.entries = append(out.entries, mapEntry{
				name: name.Value, line: name.Line, column: name.Column, value: f.flatten(value, depth+1),
			})
		}
	}

	for _, merge := range merges {
		f.merge(out, merge, depth)
	}
}

// merge adds the entries of a merge key's mappings to out. Entries that out already has take precedence.
func (f *flattener) merge(out *node, in *yaml.Node, depth int) {
	from := f.flatten(in, depth+1)

	sources := []*node{from}
	if from.kind == yaml.SequenceNode {
		sources = from.items
	}

	for _, source := range sources {
		if source.kind != yaml.MappingNode {
			f.problemf(in, "<< requires a mapping or a list of mappings")

			continue
		}

		for _, entry := range source.entries {
			if out.findEntry(entry.name) == nil {
				entry.merged = true
				out.entries = append(out.entries, entry)
			}
		}
	}
}

func (n *node) findEntry(name string) *mapEntry {
	for i := range n.entries {
		if n.entries[i].name == name {
			return &n.entries[i]
		}
	}

	return nil
}

func (n *node) isNull() bool { return n.kind == yaml.ScalarNode && n.tag == "!!null" }

// child returns the value of a key or an index, or nil if there is none.
func (n *node) child(step any) *node {
	switch typed := step.(type) {
	case int:
		if typed >= 0 && typed < len(n.items) {
			return n.items[typed]
		}
	case string:
		if entry := n.findEntry(typed); entry != nil {
			return entry.value
		}
	}

	return nil
}

// File returns the name of the file, as passed to Parse.
func (d *Document) File() string { return d.file }

// HasValue returns whether the file has a value at the path that is not null.
func (d *Document) HasValue(path Path) bool {
	current := d.root

	for _, step := range path {
		if current = current.child(step); current == nil {
			return false
		}
	}

	return !current.isNull()
}

// ProblemAt returns a problem with the value at a path, with the position of the value. If the
// value does not exist, the problem has the position of the nearest enclosing value.
func (d *Document) ProblemAt(path Path, format string, args ...any) Problem {
	problem := Problem{File: d.file, Path: path.String(), Message: fmt.Sprintf(format, args...)}
	current := d.root

	for current != nil {
		problem.Line, problem.Column = current.line, current.column

		if len(path) == 0 {
			break
		}

		current, path = current.child(path[0]), path[1:]
	}

	return problem
}
