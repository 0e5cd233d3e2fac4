// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Limits of a file. Valid files are far smaller. A larger file is a mistake, or an attack with
// nested aliases.
const (
	maxBytes         = 4 << 20
	maxNodes         = 400_000
	maxExpandedBytes = 16 * maxBytes
)

// Document is a parsed file with the position of each value.
type Document struct {
	file string
	root *yaml.Node
	// lines are the lines of the file.
	lines []string
}

// Parse parses a file with one document. The error is of type Problems. An empty file becomes an
// empty mapping.
func Parse(file string, data []byte) (*Document, error) {
	if len(data) > maxBytes {
		return nil, Problems{{File: file, Message: fmt.Sprintf("the file is larger than %d bytes", maxBytes)}}
	}

	root, err := ParseTree(data, TreeOptions{MaxNodes: maxNodes, MaxBytes: maxExpandedBytes, RequiresStringKeys: true})

	problems := asProblems(err)
	if err != nil && problems == nil {
		problems = Problems{{Message: err.Error()}}
	}

	for i := range problems {
		problems[i].File = file
	}

	if root == nil {
		return nil, problems
	}

	return &Document{file: file, root: root, lines: strings.Split(string(data), "\n")}, problems.Err()
}

// child returns the value of a key or an index, or nil if there is none.
func child(n *yaml.Node, step any) *yaml.Node {
	switch typed := step.(type) {
	case int:
		if n.Kind == yaml.SequenceNode && typed >= 0 && typed < len(n.Content) {
			return n.Content[typed]
		}
	case string:
		return find(n, typed)
	}

	return nil
}

// at returns the value at a path, or nil if there is none.
func (d *Document) at(path Path) *yaml.Node {
	current := d.root

	for _, step := range path {
		if current = child(current, step); current == nil {
			return nil
		}
	}

	return current
}

// File returns the name of the file, as passed to Parse.
func (d *Document) File() string { return d.file }

// HasValue returns whether the file has a value at the path that is not null.
func (d *Document) HasValue(path Path) bool {
	value := d.at(path)

	return value != nil && !isNull(value)
}

// ProblemAt returns a problem with the value at a path, with the position of the value. If the
// value does not exist, the problem has the position of the nearest enclosing value.
func (d *Document) ProblemAt(path Path, format string, args ...any) Problem {
	problem := Problem{File: d.file, Path: path.String(), Message: fmt.Sprintf(format, args...)}
	current := d.root

	for current != nil {
		problem.Line, problem.Column = current.Line, current.Column

		if len(path) == 0 {
			break
		}

		current, path = child(current, path[0]), path[1:]
	}

	return problem
}
