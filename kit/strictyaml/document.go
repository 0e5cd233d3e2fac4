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

// Bounds on a file. Files of ours are far smaller; one that is larger is a mistake or an
// attack by aliases of aliases.
const (
	maxBytes = 4 << 20
	maxNodes = 200_000
	maxDepth = 100
)

// Document is a file that was read, with the place of each value.
type Document struct {
	file string
	root *node
	// lines are those of the file.
	lines []string
}

// node is a value without aliases and merge keys.
type node struct {
	// kind is that of the YAML node: mapping, sequence or scalar.
	kind         yaml.Kind
	line, column int
	tag, text    string
	style        yaml.Style
	keys         []key
	items        []*node
}

// key is one entry of a mapping, in the order of the file.
type key struct {
	name         string
	line, column int
	value        *node
	// merged came from a merge key.
	merged bool
}

// Parse reads a file with one document; its error is of type Problems. An empty file is
// an empty mapping.
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
		return nil, Problems{syntax(file, err)}
	}

	if err := decoder.Decode(&second); err == nil {
		return nil, Problems{{
			File: file, Line: second.Line, Column: max(second.Column, 1),
			Message: "a second document", Hint: "a file has one document: take out what follows ---",
		}}
	} else if !errors.Is(err, io.EOF) {
		return nil, Problems{syntax(file, err)}
	}

	flat := flattener{file: file}
	if root := flat.value(first.Content[0], 0); root.tag != "!!null" {
		doc.root = root
	}

	return doc, flat.problems.Err()
}

var syntaxLine = regexp.MustCompile(`^(?:yaml: )?line (\d+)(?:, column (\d+))?: `)

// syntax is the parser's error with its line.
func syntax(file string, err error) Problem {
	text := err.Error()
	// The parser does not say the line where it is the first.
	problem := Problem{File: file, Line: 1, Column: 1, Message: "not YAML: " + strings.TrimPrefix(text, "yaml: ")}

	if match := syntaxLine.FindStringSubmatch(text); match != nil {
		problem.Line, _ = strconv.Atoi(match[1])
		problem.Column, _ = strconv.Atoi(match[2])
		problem.Column = max(problem.Column, 1)
		problem.Message = "not YAML: " + text[len(match[0]):]
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

func (f *flattener) value(in *yaml.Node, depth int) *node {
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
		return f.value(in.Alias, depth+1)
	case yaml.SequenceNode:
		for _, item := range in.Content {
			out.items = append(out.items, f.value(item, depth+1))
		}
	case yaml.MappingNode:
		f.mapping(out, in, depth)
	default:
	}

	return out
}

func (f *flattener) mapping(out *node, in *yaml.Node, depth int) {
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
			f.problemf(name, "key %s is not a text: put it in quotes", name.Value)
		case out.find(name.Value) != nil:
			f.problemf(name, "key %s is there twice, first in line %d", name.Value, out.find(name.Value).line)
		default:
			out.keys = append(out.keys, key{
				name: name.Value, line: name.Line, column: name.Column, value: f.value(value, depth+1),
			})
		}
	}

	for _, merge := range merges {
		f.merge(out, merge, depth)
	}
}

// merge adds the keys of a merge key's mappings that are not there yet.
func (f *flattener) merge(out *node, in *yaml.Node, depth int) {
	from := f.value(in, depth+1)

	sources := []*node{from}
	if from.kind == yaml.SequenceNode {
		sources = from.items
	}

	for _, source := range sources {
		if source.kind != yaml.MappingNode {
			f.problemf(in, "<< wants a mapping or a list of mappings")

			continue
		}

		for _, entry := range source.keys {
			if out.find(entry.name) == nil {
				entry.merged = true
				out.keys = append(out.keys, entry)
			}
		}
	}
}

func (n *node) find(name string) *key {
	for i := range n.keys {
		if n.keys[i].name == name {
			return &n.keys[i]
		}
	}

	return nil
}

func (n *node) null() bool { return n.kind == yaml.ScalarNode && n.tag == "!!null" }

// step is the value one step further, or nil.
func (n *node) step(step any) *node {
	switch typed := step.(type) {
	case int:
		if typed >= 0 && typed < len(n.items) {
			return n.items[typed]
		}
	case string:
		if entry := n.find(typed); entry != nil {
			return entry.value
		}
	}

	return nil
}

// File is the name that Parse was given.
func (d *Document) File() string { return d.file }

// Has says whether the file has a value there that is not null.
func (d *Document) Has(path Path) bool {
	at := d.root

	for _, step := range path {
		if at = at.step(step); at == nil {
			return false
		}
	}

	return !at.null()
}

// At is a problem with the value at a path; its place is that of the value or, where it
// is not there, of the nearest value around it.
func (d *Document) At(path Path, format string, args ...any) Problem {
	problem := Problem{File: d.file, Path: path.String(), Message: fmt.Sprintf(format, args...)}
	at := d.root

	for at != nil {
		problem.Line, problem.Column = at.line, at.column

		if len(path) == 0 {
			break
		}

		at, path = at.step(path[0]), path[1:]
	}

	return problem
}
