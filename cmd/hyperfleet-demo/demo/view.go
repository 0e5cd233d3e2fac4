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

// view is the state of the run that the console shows.
type view struct {
	elapsed time.Duration
	// total is the number of jobs. The other fields are the numbers of jobs by state.
	total, queued, running, completed, failed int
	// vms, runners and isos are the numbers of existing objects.
	vms, runners, isos int
	rows               []row
}

// row is the table row of one claim.
type row struct {
	claim, phase, vm, runner, job string
	age, inPhase                  time.Duration
}

// Sizes of the view, in columns and lines.
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
		{Title: "AGE", Right: true, Keep: 3, Cell: func(r row) string { return screen.FormatAge(r.age) }},
		{Title: "IN PHASE", Right: true, Keep: 2, Cell: func(r row) string { return screen.FormatAge(r.inPhase) }},
	}
}

// render draws the view in at most width columns and height lines.
func (v view) render(width, height int) []string {
	width = max(width, minWidth)
	lines := []string{screen.Clip(v.jobsLine(), width), v.progressBar(width), screen.Clip(v.countsLine(), width), ""}
	maxRows := max(height-headerLines-spareLines, 1)

	shown := v.rows
	if len(shown) > maxRows {
		shown = shown[:maxRows-1]
	}

	lines = append(lines, screen.Table(shown, columns(), width)...)

	if more := len(v.rows) - len(shown); more > 0 {
		lines = append(lines, screen.Clip(fmt.Sprintf("... and %d more", more), width))
	}

	return lines
}

func (v view) jobsLine() string {
	out := fmt.Sprintf("%s  jobs: %d of %d done, %d running, %d queued", screen.FormatAge(v.elapsed),
		v.completed, v.total, v.running, v.queued)
	if v.failed > 0 {
		out += fmt.Sprintf(", %d FAILED", v.failed)
	}

	return out
}

func (v view) countsLine() string {
	return fmt.Sprintf("claims %d   VMs %d   ISOs %d   runners %d", len(v.rows), v.vms, v.isos, v.runners)
}

// progressBar returns a bar that shows the shares of completed and running jobs.
func (v view) progressBar(width int) string {
	size := min(width-len("[] 100%"), maxBarWidth)
	total := max(v.total, 1)
	done := size * v.completed / total
	running := size*(v.completed+v.running)/total - done

	return "[" + strings.Repeat("#", done) + strings.Repeat("+", running) +
		strings.Repeat(".", size-done-running) + "] " + strconv.Itoa(100*v.completed/total) + "%"
}

// changes returns the differences from an earlier view, for output that is not a terminal. It has one line
// for each claim that is new, changed its phase or job, or is deleted, and one line if the number of
// completed or failed jobs changed.
func (v view) changes(last view) []string {
	old := map[string]row{}
	for _, r := range last.rows {
		old[r.claim] = r
	}

	var lines []string

	for _, r := range v.rows {
		previous, existedBefore := old[r.claim]
		delete(old, r.claim)

		if existedBefore && previous.phase == r.phase && previous.job == r.job {
			continue
		}

		lines = append(lines, strings.Join(append([]string{r.claim, r.phase}, formatVMAndJob(r)...), "  "))
	}

	for _, r := range last.rows {
		if _, isDeleted := old[r.claim]; isDeleted {
			lines = append(lines, r.claim+"  deleted after "+screen.FormatAge(r.age))
		}
	}

	if v.completed != last.completed || v.failed != last.failed {
		lines = append(lines, fmt.Sprintf("jobs: %d of %d done, %d running, %d queued, %d failed",
			v.completed, v.total, v.running, v.queued, v.failed))
	}

	return lines
}

func formatVMAndJob(r row) []string {
	var out []string

	if r.vm != "" {
		out = append(out, "vm "+r.vm)
	}

	if r.job != "" {
		out = append(out, "job "+r.job)
	}

	return out
}
