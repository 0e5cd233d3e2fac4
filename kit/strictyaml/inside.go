// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"strings"

	"go.yaml.in/yaml/v3"
)

// Inside is At for a place in a text, such as an expression or a template; line and column
// count from 1, in characters of the text. Where the text's own place in the file can't be
// told (it has escapes, say, or is folded in an uncommon way), the place is that of the
// text as a whole, and ok is false.
func (d *Document) Inside(path Path, line, column int, format string, args ...any) (problem Problem, ok bool) {
	problem = d.At(path, format, args...)
	at := d.root

	for _, step := range path {
		if at = at.step(step); at == nil {
			return problem, false
		}
	}

	if at.kind != yaml.ScalarNode || line < 1 || column < 1 {
		return problem, false
	}

	raw := d.rawLines(at)

	// What is counted is what is left of the text when its lines are laid end to end.
	count := column - 1
	for _, before := range strings.SplitAfter(at.text, "\n")[:min(line-1, strings.Count(at.text, "\n"))] {
		count += len([]rune(before))
	}

	laid := make([]string, len(raw))
	for i, one := range raw {
		laid[i] = string(one.text)
	}

	separator := "\n"
	if at.style&yaml.FoldedStyle != 0 || at.style&yaml.LiteralStyle == 0 {
		separator = " "
	}

	if strings.TrimRight(strings.Join(laid, separator), "\n ") != strings.TrimRight(at.text, "\n ") {
		return problem, false
	}

	for _, one := range raw {
		if count <= len(one.text) {
			problem.Line, problem.Column = one.line, one.column+count

			return problem, true
		}

		count -= len(one.text) + 1
	}

	return problem, false
}

// rawLine is a piece of a text as it stands in the file.
type rawLine struct {
	line, column int
	text         []rune
}

// rawLines are the pieces of a scalar: one for a text on one line, one for each line of a
// block.
func (d *Document) rawLines(at *node) []rawLine {
	if at.style&(yaml.FoldedStyle|yaml.LiteralStyle) == 0 {
		return d.inline(at)
	}

	var out []rawLine

	indent := -1

	for i := at.line; i < len(d.lines); i++ {
		line := strings.TrimRight(d.lines[i], "\r")
		bare := strings.TrimLeft(line, " ")

		if indent < 0 {
			indent = len(line) - len(bare)
		}

		// The text ends with its indentation; a blank line in it is not followed.
		if bare == "" || len(line)-len(bare) < indent || indent == 0 {
			break
		}

		out = append(out, rawLine{line: i + 1, column: indent + 1, text: []rune(line[indent:])})
	}

	return out
}

// inline is a text on one line, plain or in quotes.
func (d *Document) inline(at *node) []rawLine {
	if at.line < 1 || at.line > len(d.lines) {
		return nil
	}

	runes := []rune(d.lines[at.line-1])

	column := at.column
	if at.style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0 {
		column++
	}

	text := []rune(at.text)
	if column < 1 || column-1+len(text) > len(runes) {
		return nil
	}

	return []rawLine{{line: at.line, column: column, text: runes[column-1 : column-1+len(text)]}}
}
