// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// ColumnGap is the number of spaces between two columns.
const ColumnGap = 2

// minLast is the width to which the last column is clipped before columns are removed.
const minLast = 24

// Column is one column of a table. If the terminal is too narrow, the last column is clipped unless it is aligned
// to the right, and columns with a lower Keep are removed first. Right aligns the cells to the right. Wide columns are
// only in the output of commands with -o wide.
type Column[R any] struct {
	Title string
	Right bool
	Wide  bool
	Keep  int
	Cell  func(R) string
}

// Table returns the lines of a table with a title line. It clips the last column and removes the columns with the
// lowest Keep until the table fits the width.
func Table[R any](rows []R, cols []Column[R], width int) []string {
	for {
		lines, used, last := layoutRows(rows, cols)
		if cols[len(cols)-1].Right {
			last = 0
		}

		if used-max(last-minLast, 0) <= width || len(cols) == 1 {
			for i, line := range lines {
				lines[i] = Clip(line, width)
			}

			return lines
		}

		cols = removeLeastImportant(cols)
	}
}

func removeLeastImportant[R any](cols []Column[R]) []Column[R] {
	least := 0
	for i, c := range cols {
		if c.Keep < cols[least].Keep {
			least = i
		}
	}

	return append(append([]Column[R]{}, cols[:least]...), cols[least+1:]...)
}

// layoutRows pads the cells of each column to the same width, and returns the lines, their width, and the width of the
// last column.
func layoutRows[R any](rows []R, cols []Column[R]) (lines []string, total, last int) {
	widths := make([]int, len(cols))
	total = ColumnGap * (len(cols) - 1)

	for i, c := range cols {
		widths[i] = utf8.RuneCountInString(c.Title)
		for _, r := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(c.Cell(r)))
		}

		total += widths[i]
	}

	lines = make([]string, 0, len(rows)+1)
	lines = append(lines, joinCells(cols, widths, func(c Column[R]) string { return c.Title }))

	for _, r := range rows {
		lines = append(lines, joinCells(cols, widths, func(c Column[R]) string { return c.Cell(r) }))
	}

	return lines, total, widths[len(widths)-1]
}

func joinCells[R any](cols []Column[R], widths []int, cell func(Column[R]) string) string {
	cells := make([]string, len(cols))

	for i, c := range cols {
		text := cell(c)
		fill := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text))

		if c.Right {
			cells[i] = fill + text
		} else {
			cells[i] = text + fill
		}
	}

	return strings.TrimRight(strings.Join(cells, strings.Repeat(" ", ColumnGap)), " ")
}

// Clip cuts text to width. The last three characters of a shortened text are dots.
func Clip(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}

	return string([]rune(text)[:width-3]) + "..."
}

// FormatAge formats a duration in short form, for example 3.2s or 1m05s.
func FormatAge(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("%.1fs", d.Seconds())
	}

	return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
}
