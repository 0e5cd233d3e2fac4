// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/cmd/internal/screen"
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
	headerLines = 5
	spareLines  = 2
)

func columns() []screen.Column[row] {
	return []screen.Column[row]{
		{Title: "CLAIM", Keep: 9, Cell: func(r row) string { return r.claim }},
		{Title: "PHASE", Keep: 8, Cell: func(r row) string { return r.phase }},
		{Title: "VM", Keep: 6, Cell: func(r row) string { return r.vm }},
		{Title: "RUNNER", Keep: 1, Cell: func(r row) string { return r.runner }},
		{Title: "JOB", Keep: 5, Cell: func(r row) string { return r.job }},
		{Title: "AGE", Right: true, Keep: 3, Cell: func(r row) string { return screen.Age(r.age) }},
		{Title: "IN PHASE", Right: true, Keep: 2, Cell: func(r row) string { return screen.Age(r.inPhase) }},
	}
}

// render draws the view in at most width columns and height lines.
func (v view) render(width, height int) []string {
	width = max(width, minWidth)
	lines := []string{screen.Clip(v.jobs(), width), v.bar(width), screen.Clip(v.things(), width), ""}
	room := max(height-headerLines-spareLines, 1)

	shown := v.rows
	if len(shown) > room {
		shown = shown[:room-1]
	}

	lines = append(lines, screen.Table(shown, columns(), width)...)

	if more := len(v.rows) - len(shown); more > 0 {
		lines = append(lines, screen.Clip(fmt.Sprintf("... and %d more", more), width))
	}

	return lines
}

func (v view) jobs() string {
	out := fmt.Sprintf("%s  jobs: %d of %d done, %d running, %d queued", screen.Age(v.elapsed),
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
			lines = append(lines, r.claim+"  gone after "+screen.Age(r.age))
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
