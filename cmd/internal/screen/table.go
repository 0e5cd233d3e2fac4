// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// ColumnGap is between two columns.
const ColumnGap = 2

// Column is one column of a table of rows. Columns with a lower Keep are left out first when
// the terminal is narrow.
type Column[R any] struct {
	Title string
	Right bool
	Keep  int
	Cell  func(R) string
}

// Table lays rows out in columns below their titles, leaving out the least important ones until
// it fits the width.
func Table[R any](rows []R, cols []Column[R], width int) []string {
	for {
		lines, used := layout(rows, cols)
		if used <= width || len(cols) == 1 {
			for i, line := range lines {
				lines[i] = Clip(line, width)
			}

			return lines
		}

		cols = withoutLeast(cols)
	}
}

func withoutLeast[R any](cols []Column[R]) []Column[R] {
	least := 0
	for i, c := range cols {
		if c.Keep < cols[least].Keep {
			least = i
		}
	}

	return append(append([]Column[R]{}, cols[:least]...), cols[least+1:]...)
}

// layout pads every cell to its column's widest and gives the lines and their width.
func layout[R any](rows []R, cols []Column[R]) ([]string, int) {
	widths := make([]int, len(cols))
	total := ColumnGap * (len(cols) - 1)

	for i, c := range cols {
		widths[i] = len(c.Title)
		for _, r := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(c.Cell(r)))
		}

		total += widths[i]
	}

	lines := make([]string, 0, len(rows)+1)
	lines = append(lines, join(cols, widths, func(c Column[R]) string { return c.Title }))

	for _, r := range rows {
		lines = append(lines, join(cols, widths, func(c Column[R]) string { return c.Cell(r) }))
	}

	return lines, total
}

func join[R any](cols []Column[R], widths []int, cell func(Column[R]) string) string {
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

// Clip cuts text to width, with three dots where something is missing.
func Clip(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}

	return string([]rune(text)[:width-3]) + "..."
}

// Age writes a duration shortly: 3.2s, 1m05s.
func Age(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("%.1fs", d.Seconds())
	}

	return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
}
