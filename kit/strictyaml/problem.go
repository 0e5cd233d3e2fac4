// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Path is the path to a value. A string element is a key, and an int element is an index of a list.
type Path []any

// Append returns a new path with additional elements. It does not change p.
func (p Path) Append(elements ...any) Path { return append(slices.Clip(slices.Clone(p)), elements...) }

// String formats the path, for example resources[0].lifecycle.delete.when. Keys with dots, spaces,
// brackets or quotes are written in brackets and quotes.
func (p Path) String() string {
	var out strings.Builder

	for _, step := range p {
		switch typed := step.(type) {
		case int:
			fmt.Fprintf(&out, "[%d]", typed)
		case string:
			switch {
			case strings.ContainsAny(typed, `.[]"' `) || typed == "":
				out.WriteString("[" + strconv.Quote(typed) + "]")
			case out.Len() > 0:
				out.WriteString("." + typed)
			default:
				out.WriteString(typed)
			}
		}
	}

	return out.String()
}

// Problem is one problem in a file.
type Problem struct {
	File string `json:"file"`
	// Line and Column count from 1. They are 0 if the position is unknown.
	Line   int `json:"line,omitempty"`
	Column int `json:"column,omitempty"`
	// Path is the path of the value. It is empty if the problem concerns the whole file.
	Path string `json:"path,omitempty"`
	// Message describes the problem.
	Message string `json:"message"`
	// Hint describes the fix.
	Hint string `json:"hint,omitempty"`
}

// String formats the problem as one line: file:line:column: path: message (hint). Without a file, it begins with
// "line N, column N".
func (p Problem) String() string {
	var place []string

	switch {
	case p.File == "" && p.Line > 0:
		place = append(place, fmt.Sprintf("line %d, column %d", p.Line, p.Column))
	case p.File != "" && p.Line > 0:
		place = append(place, fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column))
	case p.File != "":
		place = append(place, p.File)
	}

	if p.Path != "" {
		place = append(place, p.Path)
	}

	var out strings.Builder

	out.WriteString(strings.Join(append(place, p.Message), ": "))

	if p.Hint != "" {
		out.WriteString(" (" + p.Hint + ")")
	}

	return out.String()
}

// WithHint returns the problem with a hint.
func (p Problem) WithHint(format string, args ...any) Problem {
	p.Hint = fmt.Sprintf(format, args...)

	return p
}

// Problems is an error with one line for each problem.
type Problems []Problem //nolint:errname // a plural noun is clearer for a list

// Error returns one line for each problem.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, problem := range p {
		lines[i] = problem.String()
	}

	return strings.Join(lines, "\n")
}

// First returns an error with only the first problem if err is of type Problems, and otherwise err.
func First(err error) error {
	if problems := asProblems(err); len(problems) > 0 {
		return problems[:1]
	}

	return err
}

// Err returns nil if there is no problem. Otherwise it returns the result of Sorted.
func (p Problems) Err() error {
	if len(p) == 0 {
		return nil
	}

	return p.Sorted()
}

// Sorted returns the problems in the order of file, line and column, without duplicates.
func (p Problems) Sorted() Problems {
	sorted := slices.Clone(p)

	slices.SortStableFunc(sorted, func(a, b Problem) int {
		if order := strings.Compare(a.File, b.File); order != 0 {
			return order
		}

		if a.Line != b.Line {
			return a.Line - b.Line
		}

		return a.Column - b.Column
	})

	return slices.Compact(sorted)
}
