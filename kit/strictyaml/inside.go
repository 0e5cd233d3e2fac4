// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"strings"

	"go.yaml.in/yaml/v3"
)

// ProblemInside returns a problem at a position inside a string value, such as an expression or a
// template. line and column count from 1, in characters of the string. If the position in the file
// cannot be determined, for example because the string has escapes or is folded in an uncommon way,
// the problem has the position of the whole string and ok is false.
func (d *Document) ProblemInside(path Path, line, column int, format string, args ...any) (problem Problem, ok bool) {
	problem = d.ProblemAt(path, format, args...)

	current := d.at(path)
	if current == nil || current.Kind != yaml.ScalarNode || line < 1 || column < 1 {
		return problem, false
	}

	raw := d.rawLines(current)

	// offset is the position in characters after all lines of the string are joined.
	offset := column - 1
	for _, previous := range strings.SplitAfter(current.Value, "\n")[:min(line-1, strings.Count(current.Value, "\n"))] {
		offset += len([]rune(previous))
	}

	texts := make([]string, len(raw))
	for i, piece := range raw {
		texts[i] = string(piece.text)
	}

	separator := "\n"
	if current.Style&yaml.FoldedStyle != 0 || current.Style&yaml.LiteralStyle == 0 {
		separator = " "
	}

	if strings.TrimRight(strings.Join(texts, separator), "\n ") != strings.TrimRight(current.Value, "\n ") {
		return problem, false
	}

	for _, piece := range raw {
		if offset <= len(piece.text) {
			problem.Line, problem.Column = piece.line, piece.column+offset

			return problem, true
		}

		offset -= len(piece.text) + 1
	}

	return problem, false
}

// rawLine is a part of a string value as it is written in the file.
type rawLine struct {
	line, column int
	text         []rune
}

// rawLines returns the parts of a scalar: one part for a string on one line, or one part for each
// line of a block.
func (d *Document) rawLines(scalar *yaml.Node) []rawLine {
	if scalar.Style&(yaml.FoldedStyle|yaml.LiteralStyle) == 0 {
		return d.inlineText(scalar)
	}

	var out []rawLine

	indent := -1

	for i := scalar.Line; i < len(d.lines); i++ {
		line := strings.TrimRight(d.lines[i], "\r")
		content := strings.TrimLeft(line, " ")

		if indent < 0 {
			indent = len(line) - len(content)
		}

		// The block ends at the first line with less indentation. Lines after a blank line are not supported.
		if content == "" || len(line)-len(content) < indent || indent == 0 {
			break
		}

		out = append(out, rawLine{line: i + 1, column: indent + 1, text: []rune(line[indent:])})
	}

	return out
}

// inlineText returns the part of a plain or quoted scalar on one line.
func (d *Document) inlineText(scalar *yaml.Node) []rawLine {
	if scalar.Line < 1 || scalar.Line > len(d.lines) {
		return nil
	}

	runes := []rune(d.lines[scalar.Line-1])

	column := scalar.Column
	if scalar.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0 {
		column++
	}

	text := []rune(scalar.Value)
	if column < 1 || column-1+len(text) > len(runes) {
		return nil
	}

	return []rawLine{{line: scalar.Line, column: column, text: runes[column-1 : column-1+len(text)]}}
}
