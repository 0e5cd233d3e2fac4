// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// view is one moment of the run, as people see it.
type view struct {
	elapsed time.Duration
	// total jobs, and how many of them are queued, running, completed, and failed.
	total, queued, running, completed, failed int
	// vms, runners and isos that exist.
	vms, runners, isos int
	rows               []row
}

// row is one claim.
type row struct {
	claim, phase, vm, runner, job string
	age, inPhase                  time.Duration
}

// Sizes of the table.
const (
	minWidth    = 40
	maxBarWidth = 60
	columnGap   = 2
	headerLines = 5
	spareLines  = 2
)

// column is one column of the table. Columns with a lower keep are left out first when
// the terminal is narrow.
type column struct {
	title string
	right bool
	keep  int
	cell  func(row) string
}

func columns() []column {
	return []column{
		{title: "CLAIM", keep: 9, cell: func(r row) string { return r.claim }},
		{title: "PHASE", keep: 8, cell: func(r row) string { return r.phase }},
		{title: "VM", keep: 6, cell: func(r row) string { return r.vm }},
		{title: "RUNNER", keep: 1, cell: func(r row) string { return r.runner }},
		{title: "JOB", keep: 5, cell: func(r row) string { return r.job }},
		{title: "AGE", right: true, keep: 3, cell: func(r row) string { return age(r.age) }},
		{title: "IN PHASE", right: true, keep: 2, cell: func(r row) string { return age(r.inPhase) }},
	}
}

// render draws the view in at most width columns and height lines.
func (v view) render(width, height int) []string {
	width = max(width, minWidth)
	lines := []string{clip(v.jobs(), width), v.bar(width), clip(v.things(), width), ""}
	room := max(height-headerLines-spareLines, 1)

	shown := v.rows
	if len(shown) > room {
		shown = shown[:room-1]
	}

	lines = append(lines, table(shown, width)...)

	if more := len(v.rows) - len(shown); more > 0 {
		lines = append(lines, clip(fmt.Sprintf("... and %d more", more), width))
	}

	return lines
}

func (v view) jobs() string {
	out := fmt.Sprintf("%s  jobs: %d of %d done, %d running, %d queued", age(v.elapsed),
		v.completed, v.total, v.running, v.queued)
	if v.failed > 0 {
		out += fmt.Sprintf(", %d FAILED", v.failed)
	}

	return out
}

func (v view) things() string {
	return fmt.Sprintf("claims %d   VMs %d   ISOs %d   runners %d", len(v.rows), v.vms, v.isos, v.runners)
}

// bar shows completed and running jobs as shares of all.
func (v view) bar(width int) string {
	size := min(width-len("[] 100%"), maxBarWidth)
	total := max(v.total, 1)
	done := size * v.completed / total
	running := size*(v.completed+v.running)/total - done

	return "[" + strings.Repeat("#", done) + strings.Repeat("+", running) +
		strings.Repeat(".", size-done-running) + "] " + strconv.Itoa(100*v.completed/total) + "%"
}

// table lays rows out in columns, leaving out the least important ones until it fits.
func table(rows []row, width int) []string {
	cols := columns()
	for {
		lines, used := layout(rows, cols)
		if used <= width || len(cols) == 1 {
			for i, line := range lines {
				lines[i] = clip(line, width)
			}

			return lines
		}

		cols = withoutLeast(cols)
	}
}

func withoutLeast(cols []column) []column {
	least := 0
	for i, c := range cols {
		if c.keep < cols[least].keep {
			least = i
		}
	}

	return append(append([]column{}, cols[:least]...), cols[least+1:]...)
}

// layout pads every cell to its column's widest and gives the lines and their width.
func layout(rows []row, cols []column) ([]string, int) {
	widths := make([]int, len(cols))
	total := columnGap * (len(cols) - 1)

	for i, c := range cols {
		widths[i] = len(c.title)
		for _, r := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(c.cell(r)))
		}

		total += widths[i]
	}

	lines := make([]string, 0, len(rows)+1)
	lines = append(lines, join(cols, widths, func(c column) string { return c.title }))

	for _, r := range rows {
		lines = append(lines, join(cols, widths, func(c column) string { return c.cell(r) }))
	}

	return lines, total
}

func join(cols []column, widths []int, cell func(column) string) string {
	cells := make([]string, len(cols))

	for i, c := range cols {
		text := cell(c)
		fill := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text))

		if c.right {
			cells[i] = fill + text
		} else {
			cells[i] = text + fill
		}
	}

	return strings.TrimRight(strings.Join(cells, strings.Repeat(" ", columnGap)), " ")
}

// clip cuts text to width, with three dots where something is missing.
func clip(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}

	return string([]rune(text)[:width-3]) + "..."
}

// age writes a duration shortly: 3.2s, 1m05s.
func age(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("%.1fs", d.Seconds())
	}

	return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
}

// changes says in words what differs from an earlier view, for output without a
// terminal: one line per claim that came, moved on or went.
func (v view) changes(before view) []string {
	old := map[string]row{}
	for _, r := range before.rows {
		old[r.claim] = r
	}

	var lines []string

	for _, r := range v.rows {
		was, had := old[r.claim]
		delete(old, r.claim)

		if had && was.phase == r.phase && was.job == r.job {
			continue
		}

		lines = append(lines, strings.Join(append([]string{r.claim, r.phase}, present(r)...), "  "))
	}

	for _, r := range before.rows {
		if _, gone := old[r.claim]; gone {
			lines = append(lines, r.claim+"  gone after "+age(r.age))
		}
	}

	if v.completed != before.completed || v.failed != before.failed {
		lines = append(lines, fmt.Sprintf("jobs: %d of %d done, %d running, %d queued, %d failed",
			v.completed, v.total, v.running, v.queued, v.failed))
	}

	return lines
}

func present(r row) []string {
	var out []string

	if r.vm != "" {
		out = append(out, "vm "+r.vm)
	}

	if r.job != "" {
		out = append(out, "job "+r.job)
	}

	return out
}
