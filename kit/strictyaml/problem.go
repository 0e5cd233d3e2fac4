// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Path leads to a value: a string is a key, an int an index of a list.
type Path []any

// With is the path with more steps; the path itself stays as it is.
func (p Path) With(steps ...any) Path { return append(slices.Clip(slices.Clone(p)), steps...) }

// String is the path as people write it: resources[0].lifecycle.delete.when, with keys
// that have dots or spaces in them in brackets and quotes.
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

// Problem is one thing wrong in a file.
type Problem struct {
	File string `json:"file"`
	// Line and Column count from 1; 0 where the place is not known.
	Line   int `json:"line,omitempty"`
	Column int `json:"column,omitempty"`
	// Path of the value; empty for the file as a whole.
	Path string `json:"path,omitempty"`
	// Message says what is wrong.
	Message string `json:"message"`
	// Hint says what to do about it.
	Hint string `json:"hint,omitempty"`
}

// String is one line: file:line:column: path: message (hint).
func (p Problem) String() string {
	var out strings.Builder

	out.WriteString(p.File)

	if p.Line > 0 {
		fmt.Fprintf(&out, ":%d:%d", p.Line, p.Column)
	}

	if p.Path != "" {
		out.WriteString(": " + p.Path)
	}

	out.WriteString(": " + p.Message)

	if p.Hint != "" {
		out.WriteString(" (" + p.Hint + ")")
	}

	return out.String()
}

// WithHint is the problem with words on what to do about it.
func (p Problem) WithHint(format string, args ...any) Problem {
	p.Hint = fmt.Sprintf(format, args...)

	return p
}

// Problems is an error of one line for each problem.
type Problems []Problem //nolint:errname // it is said in the plural, as what it is

// Error gives each problem a line.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, problem := range p {
		lines[i] = problem.String()
	}

	return strings.Join(lines, "\n")
}

// Err is nil where there is no problem; else the problems in the order of the file,
// those that are said twice once.
func (p Problems) Err() error {
	if len(p) == 0 {
		return nil
	}

	return p.Sorted()
}

// Sorted are the problems in the order of the file, those that are said twice once.
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
