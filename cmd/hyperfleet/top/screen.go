// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/jobs"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/live"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/cmd/internal/screen"
)

// Lists in the order in which they are shown, and their number.
const (
	listPools = iota
	listMachines
	listJobs
	listCount
)

// Minimum size of a frame.
const (
	minWidth  = 40
	minHeight = 8
	// chromeHeight is the number of lines of a frame that are not rows of the list: the counts, the names of
	// the lists, the column titles and the keys.
	chromeHeight = 7
)

// machine is one row of the list of machines.
type machine struct {
	jobs.VM

	Namespace, Pool, Job string
	Age                  time.Duration
}

// snapshot has the content of all lists at one time.
type snapshot struct {
	summary  *live.Summary
	machines []machine
	jobs     []jobs.Job
}

// state is the state of the user interface.
type state struct {
	server string
	list   int
	// selected is the index of the selected row of each list.
	selected [listCount]int
	// detail has the lines of the details that are shown; nil if a list is shown. scroll is the index of the
	// first line that is shown.
	detail []string
	scroll int
}

// Names of keys.
const (
	keyUp, keyDown, keyPageUp, keyPageDown = "up", "down", "pgup", "pgdown"
	keyEnter, keyBack, keyNext, keyQuit    = "enter", "back", "next", "quit"
)

// handleKey changes the state for a key. It returns true if the details of the selected row should be shown.
func (s *state) handleKey(key string, now snapshot) (open bool) {
	move := map[string]int{keyUp: -1, keyDown: 1, keyPageUp: -10, keyPageDown: 10}[key]

	switch {
	case s.detail != nil && move != 0:
		s.scroll = min(max(s.scroll+move, 0), max(len(s.detail)-1, 0))
	case s.detail != nil && (key == keyBack || key == keyEnter):
		s.detail = nil
	case s.detail != nil:
	case move != 0:
		s.selected[s.list] = min(max(s.selected[s.list]+move, 0), max(now.rowCount(s.list)-1, 0))
	case key == keyNext:
		s.list = (s.list + 1) % listCount
	case key == "1" || key == "2" || key == "3":
		s.list = int(key[0] - '1')
	case key == keyEnter:
		return now.rowCount(s.list) > 0
	}

	return false
}

func (m snapshot) rowCount(list int) int {
	return []int{len(m.summary.Pools), len(m.machines), len(m.jobs)}[list]
}

// selectedRow returns the index of the selected row of the current list. The list may have become shorter.
func (s *state) selectedRow(now snapshot) int {
	return min(s.selected[s.list], max(now.rowCount(s.list)-1, 0))
}

// render returns the lines of a frame with the given size. It uses minWidth and minHeight if the size is
// smaller.
func (s *state) render(now snapshot, width, height int) []string {
	width, height = max(width, minWidth), max(height, minHeight)

	if s.detail != nil {
		return s.renderDetail(width, height)
	}

	visible := height - chromeHeight
	selected := s.selectedRow(now)
	from := max(selected-visible+1, 0)
	until := min(from+visible, now.rowCount(s.list))

	out := append(s.renderHeader(now, width), "")
	out = append(out, s.renderTabs(now, width))

	rows := now.renderTable(s.list, from, until, width)
	out = append(out, screen.Bold+rows[0]+screen.Plain)

	for i, row := range rows[1:] {
		if from+i == selected {
			row = screen.Reverse + row + strings.Repeat(" ", max(width-len([]rune(row)), 0)) + screen.Plain
		}

		out = append(out, row)
	}

	if now.rowCount(s.list) == 0 {
		out = append(out, "none")
	}

	for len(out) < height-1 {
		out = append(out, "")
	}

	return append(out, screen.Clip("1 2 3 tab: list   up down: select   enter: details   q: quit", width))
}

// renderHeader returns two lines with the number of jobs and machines by state, and the first object that is
// not ready.
func (s *state) renderHeader(now snapshot, width int) []string {
	sum := now.summary
	first := s.server + "  " + english.Plural(sum.Waiting, "job", "") + " waiting"

	if sum.Waiting > 0 {
		first += ", the longest for " + jobs.FormatDuration(sum.LongestWait.Seconds())
	}

	first += fmt.Sprintf("; %d running; %d finished in the last hour, %d of them failed", sum.Running, sum.Finished, sum.Failed)
	second := fmt.Sprintf("machines: %d busy, %d idle, %d starting, %d ending, %d failed",
		sum.Machines.Busy, sum.Machines.Idle, sum.Machines.Starting, sum.Machines.Ending, sum.Machines.Failed)

	if len(sum.Troubles) > 0 {
		second += fmt.Sprintf("; not ready: %s %s", sum.Troubles[0].Kind, sum.Troubles[0].Name)
		if more := len(sum.Troubles) - 1; more > 0 {
			second += fmt.Sprintf(" and %d more", more)
		}
	}

	return []string{screen.Clip(first, width), screen.Clip(second, width)}
}

// renderTabs returns the line with the names of the lists. The current list is in brackets.
func (s *state) renderTabs(now snapshot, width int) string {
	names := [listCount]string{"pools", "machines", "jobs"}
	cells := make([]string, listCount)

	for i, name := range names {
		cells[i] = fmt.Sprintf(" %d %s %d ", i+1, name, now.rowCount(i))
		if i == s.list {
			cells[i] = "[" + strings.TrimSpace(cells[i]) + "]"
		}
	}

	return screen.Clip(strings.Join(cells, " "), width)
}

// renderTable returns the column titles and the rows [from, until) of a list.
func (m snapshot) renderTable(list, from, until, width int) []string {
	switch list {
	case listPools:
		return screen.Table(m.summary.Pools[from:until], poolColumns(), width)
	case listMachines:
		return screen.Table(m.machines[from:until], machineColumns(), width)
	default:
		return screen.Table(m.jobs[from:until], jobColumns(), width)
	}
}

// renderDetail returns the lines of a frame with the details.
func (s *state) renderDetail(width, height int) []string {
	from := min(s.scroll, max(len(s.detail)-1, 0))
	until := min(from+height-2, len(s.detail))
	out := make([]string, 0, height)

	for _, line := range s.detail[from:until] {
		out = append(out, screen.Clip(line, width))
	}

	for len(out) < height-1 {
		out = append(out, "")
	}

	return append(out, screen.Clip("up down: scroll   esc: back   q: quit", width))
}

func formatNumber[N int | int32](n N) string { return strconv.Itoa(int(n)) }

func poolColumns() []screen.Column[live.Pool] {
	return []screen.Column[live.Pool]{
		{Title: "POOL", Keep: 9, Cell: func(p live.Pool) string { return p.Name }},
		{Title: "NAMESPACE", Keep: 1, Cell: func(p live.Pool) string { return p.Namespace }},
		{Title: "QUEUED", Right: true, Keep: 8, Cell: func(p live.Pool) string { return formatNumber(p.Status.QueuedJobs) }},
		{Title: "BUSY", Right: true, Keep: 8, Cell: func(p live.Pool) string { return formatNumber(p.Status.BusyReplicas) }},
		{Title: "IDLE", Right: true, Keep: 6, Cell: func(p live.Pool) string { return formatNumber(p.Idle()) }},
		{Title: "STARTING", Right: true, Keep: 5, Cell: func(p live.Pool) string { return formatNumber(p.Starting()) }},
		{Title: "DESIRED", Right: true, Keep: 4, Cell: func(p live.Pool) string { return formatNumber(p.Status.DesiredReplicas) }},
		{Title: "MAX", Right: true, Keep: 4, Cell: func(p live.Pool) string { return formatNumber(p.Spec.Scaling.MaxReplicas) }},
		{Title: "STATE", Keep: 3, Cell: func(p live.Pool) string { return formatCause(p.Ready.Reason, p.Ready.Message) }},
	}
}

func machineColumns() []screen.Column[machine] {
	return []screen.Column[machine]{
		{Title: "MACHINE", Keep: 9, Cell: func(m machine) string { return m.Claim }},
		{Title: "PHASE", Keep: 8, Cell: func(m machine) string { return m.Phase }},
		{Title: "POOL", Keep: 4, Cell: func(m machine) string { return m.Pool }},
		{Title: "NODE", Keep: 5, Cell: func(m machine) string { return m.Node }},
		{Title: "VM", Keep: 3, Right: true, Cell: func(m machine) string { return m.ID }},
		{Title: "AGE", Keep: 6, Right: true, Cell: func(m machine) string { return jobs.FormatDuration(m.Age.Seconds()) }},
		{Title: "JOB", Keep: 2, Cell: func(m machine) string { return m.Job }},
		{Title: "STATE", Keep: 7, Cell: func(m machine) string { return formatCause(m.Reason, m.Message) }},
	}
}

func jobColumns() []screen.Column[jobs.Job] {
	return []screen.Column[jobs.Job]{
		{Title: "JOB", Keep: 9, Cell: func(j jobs.Job) string { return cli.SanitizeLine(j.Name) }},
		{Title: "STATE", Keep: 8, Cell: func(j jobs.Job) string {
			if j.Conclusion != "" {
				return cli.SanitizeLine(j.Conclusion)
			}

			return string(j.State)
		}},
		{Title: "REPOSITORY", Keep: 5, Cell: func(j jobs.Job) string { return cli.SanitizeLine(j.Repository) }},
		{Title: "POOL", Keep: 4, Cell: func(j jobs.Job) string { return j.Pool }},
		{Title: "WAITED", Keep: 6, Right: true, Cell: func(j jobs.Job) string { return jobs.FormatDuration(j.WaitedSeconds) }},
		{Title: "RAN", Keep: 3, Right: true, Cell: func(j jobs.Job) string {
			if j.RanSeconds == nil {
				return ""
			}

			return jobs.FormatDuration(*j.RanSeconds)
		}},
		{Title: "MACHINE OR CAUSE", Keep: 7, Cell: func(j jobs.Job) string {
			if j.Cause == nil {
				return j.Machine
			}

			return formatCause(j.Cause.Reason, j.Cause.Message)
		}},
	}
}

// formatCause returns a reason and a message in one line that is short enough for a table.
func formatCause(reason, message string) string {
	const maxLength = 72

	text := cli.SanitizeLine(strings.TrimSuffix(reason+": "+message, ": "))

	return screen.Clip(text, maxLength)
}

// formatConditions returns a line with type, status and reason for each condition, and a line with its
// message.
func formatConditions(conditions []condition) []string {
	var out []string

	for _, c := range conditions {
		out = append(out, fmt.Sprintf("  %-18s %-8s %s", c.Type, c.Status, formatCause(c.Reason, "")))
		if c.Message != "" {
			out = append(out, "    "+cli.SanitizeLine(c.Message))
		}
	}

	return out
}

// formatPool returns the lines of the details of a pool.
func formatPool(p live.Pool) []string {
	out := []string{
		"Pool        " + p.Namespace + "/" + p.Name,
		fmt.Sprintf("Jobs        %d queued, %d running", p.Status.QueuedJobs, p.Status.RunningJobs),
		fmt.Sprintf("Machines    %d busy, %d idle, %d starting, %d on standby; %d desired, %d to %d", p.Status.BusyReplicas, p.Idle(),
			p.Starting(), p.Status.StandbyReplicas, p.Status.DesiredReplicas, p.Spec.Scaling.MinReplicas, p.Spec.Scaling.MaxReplicas),
	}

	if p.Spec.Paused {
		out = append(out, "Paused      yes")
	}

	if f := p.Status.LastFailure; f != nil {
		out = append(out, "Last failure of "+f.Claim+" "+f.Node, "  "+cli.SanitizeLine(f.Reason+": "+f.Message))
	}

	return append(append(out, "", "Conditions:"), formatConditions(p.Status.Conditions)...)
}

// formatMachine returns the lines of the details of a machine.
func formatMachine(claim *v1alpha1.MachineClaim) []string {
	out := []string{"Machine     " + claim.Namespace + "/" + cli.SanitizeLine(jobs.DescribeMachine(jobs.NewVM(claim)))}

	if info := claim.Status.BootstrapInfo; info != nil {
		out = append(
			out,
			"Runner      "+info.RunnerName,
			"Job         "+info.Job,
			"Guest       "+cli.SanitizeLine(info.GuestPhase+" "+info.GuestMessage),
		)
	}

	if b := claim.Status.Backoff; b != nil {
		out = append(
			out,
			fmt.Sprintf("%s failed %d times in a row; the next attempt is at %s", b.Step, b.Failures, b.Until.Format(time.TimeOnly)),
		)
	}

	return append(append(out, "", "Conditions:"), formatConditions(claim.Status.Conditions)...)
}
