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

// The lists, in their order.
const (
	listPools = iota
	listMachines
	listJobs
	lists
)

// Bounds of a frame.
const (
	minWidth  = 40
	minHeight = 8
	// around are the lines around a list: head, counts, names of lists, titles, keys.
	around = 7
)

// machine is one machine of the list.
type machine struct {
	jobs.VM

	Namespace, Pool, Job string
	Age                  time.Duration
}

// moment is what there is at one moment.
type moment struct {
	summary  *live.Summary
	machines []machine
	jobs     []jobs.Job
}

// state is what is looked at.
type state struct {
	where string
	list  int
	// at is the chosen row of each list.
	at [lists]int
	// detail is the text of what is looked into; nil for a list. scroll is its first line shown.
	detail []string
	scroll int
}

// Keys, as they are read.
const (
	keyUp, keyDown, keyPageUp, keyPageDown = "up", "down", "pgup", "pgdown"
	keyEnter, keyBack, keyNext, keyQuit    = "enter", "back", "next", "quit"
)

// press does what a key says. It says whether what is chosen is to be looked into.
func (s *state) press(key string, now moment) (open bool) {
	move := map[string]int{keyUp: -1, keyDown: 1, keyPageUp: -10, keyPageDown: 10}[key]

	switch {
	case s.detail != nil && move != 0:
		s.scroll = min(max(s.scroll+move, 0), max(len(s.detail)-1, 0))
	case s.detail != nil && (key == keyBack || key == keyEnter):
		s.detail = nil
	case s.detail != nil:
	case move != 0:
		s.at[s.list] = min(max(s.at[s.list]+move, 0), max(now.rows(s.list)-1, 0))
	case key == keyNext:
		s.list = (s.list + 1) % lists
	case key == "1" || key == "2" || key == "3":
		s.list = int(key[0] - '1')
	case key == keyEnter:
		return now.rows(s.list) > 0
	}

	return false
}

func (m moment) rows(list int) int {
	return []int{len(m.summary.Pools), len(m.machines), len(m.jobs)}[list]
}

// chosen is the row of the list that is chosen.
func (s *state) chosen(now moment) int { return min(s.at[s.list], max(now.rows(s.list)-1, 0)) }

// render draws a frame of at most width columns and height lines.
func (s *state) render(now moment, width, height int) []string {
	width, height = max(width, minWidth), max(height, minHeight)

	if s.detail != nil {
		return s.look(width, height)
	}

	room := height - around
	chosen := s.chosen(now)
	from := max(chosen-room+1, 0)
	until := min(from+room, now.rows(s.list))

	out := append(s.head(now, width), "")
	out = append(out, s.tabs(now, width))

	rows := now.table(s.list, from, until, width)
	out = append(out, screen.Bold+rows[0]+screen.Plain)

	for i, row := range rows[1:] {
		if from+i == chosen {
			row = screen.Reverse + row + strings.Repeat(" ", max(width-len([]rune(row)), 0)) + screen.Plain
		}

		out = append(out, row)
	}

	if now.rows(s.list) == 0 {
		out = append(out, "none")
	}

	for len(out) < height-1 {
		out = append(out, "")
	}

	return append(out, screen.Clip("1 2 3 tab: list   up down: choose   enter: look into it   q: end", width))
}

// head says in two lines how it goes.
func (s *state) head(now moment, width int) []string {
	sum := now.summary
	first := s.where + "  " + english.Plural(sum.Waiting, "job", "") + " " + english.PluralWord(sum.Waiting, "waits", "wait")

	if sum.Waiting > 0 {
		first += ", the longest for " + jobs.Human(sum.LongestWait.Seconds())
	}

	first += fmt.Sprintf("; %d run; %d done in an hour, %d failed", sum.Running, sum.Finished, sum.Failed)
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

// tabs names the lists.
func (s *state) tabs(now moment, width int) string {
	names := [lists]string{"pools", "machines", "jobs"}
	cells := make([]string, lists)

	for i, name := range names {
		cells[i] = fmt.Sprintf(" %d %s %d ", i+1, name, now.rows(i))
		if i == s.list {
			cells[i] = "[" + strings.TrimSpace(cells[i]) + "]"
		}
	}

	return screen.Clip(strings.Join(cells, " "), width)
}

// table gives the titles and the rows of a part of a list.
func (m moment) table(list, from, until, width int) []string {
	switch list {
	case listPools:
		return screen.Table(m.summary.Pools[from:until], poolColumns(), width)
	case listMachines:
		return screen.Table(m.machines[from:until], machineColumns(), width)
	default:
		return screen.Table(m.jobs[from:until], jobColumns(), width)
	}
}

// look shows what is looked into.
func (s *state) look(width, height int) []string {
	from := min(s.scroll, max(len(s.detail)-1, 0))
	until := min(from+height-2, len(s.detail))
	out := make([]string, 0, height)

	for _, line := range s.detail[from:until] {
		out = append(out, screen.Clip(line, width))
	}

	for len(out) < height-1 {
		out = append(out, "")
	}

	return append(out, screen.Clip("up down: scroll   esc: back   q: end", width))
}

func number[N int | int32](n N) string { return strconv.Itoa(int(n)) }

func poolColumns() []screen.Column[live.Pool] {
	return []screen.Column[live.Pool]{
		{Title: "POOL", Keep: 9, Cell: func(p live.Pool) string { return p.Name }},
		{Title: "NAMESPACE", Keep: 1, Cell: func(p live.Pool) string { return p.Namespace }},
		{Title: "QUEUED", Right: true, Keep: 8, Cell: func(p live.Pool) string { return number(p.Status.QueuedJobs) }},
		{Title: "BUSY", Right: true, Keep: 8, Cell: func(p live.Pool) string { return number(p.Status.BusyReplicas) }},
		{Title: "IDLE", Right: true, Keep: 6, Cell: func(p live.Pool) string { return number(p.Idle()) }},
		{Title: "STARTING", Right: true, Keep: 5, Cell: func(p live.Pool) string { return number(p.Starting()) }},
		{Title: "WANTED", Right: true, Keep: 4, Cell: func(p live.Pool) string { return number(p.Status.DesiredReplicas) }},
		{Title: "MAX", Right: true, Keep: 4, Cell: func(p live.Pool) string { return number(p.Spec.Scaling.MaxReplicas) }},
		{Title: "STATE", Keep: 3, Cell: func(p live.Pool) string { return cause(p.Ready.Reason, p.Ready.Message) }},
	}
}

func machineColumns() []screen.Column[machine] {
	return []screen.Column[machine]{
		{Title: "MACHINE", Keep: 9, Cell: func(m machine) string { return m.Claim }},
		{Title: "PHASE", Keep: 8, Cell: func(m machine) string { return m.Phase }},
		{Title: "POOL", Keep: 4, Cell: func(m machine) string { return m.Pool }},
		{Title: "NODE", Keep: 5, Cell: func(m machine) string { return m.Node }},
		{Title: "VM", Keep: 3, Right: true, Cell: func(m machine) string { return m.ID }},
		{Title: "AGE", Keep: 6, Right: true, Cell: func(m machine) string { return jobs.Human(m.Age.Seconds()) }},
		{Title: "JOB", Keep: 2, Cell: func(m machine) string { return m.Job }},
		{Title: "STATE", Keep: 7, Cell: func(m machine) string { return cause(m.Reason, m.Message) }},
	}
}

func jobColumns() []screen.Column[jobs.Job] {
	return []screen.Column[jobs.Job]{
		{Title: "JOB", Keep: 9, Cell: func(j jobs.Job) string { return cli.Line(j.Name) }},
		{Title: "STATE", Keep: 8, Cell: func(j jobs.Job) string {
			if j.Conclusion != "" {
				return cli.Line(j.Conclusion)
			}

			return string(j.State)
		}},
		{Title: "REPOSITORY", Keep: 5, Cell: func(j jobs.Job) string { return cli.Line(j.Repository) }},
		{Title: "POOL", Keep: 4, Cell: func(j jobs.Job) string { return j.Pool }},
		{Title: "WAITED", Keep: 6, Right: true, Cell: func(j jobs.Job) string { return jobs.Human(j.WaitedSeconds) }},
		{Title: "RAN", Keep: 3, Right: true, Cell: func(j jobs.Job) string {
			if j.RanSeconds == nil {
				return ""
			}

			return jobs.Human(*j.RanSeconds)
		}},
		{Title: "MACHINE, OR WHAT IT WAITS FOR", Keep: 7, Cell: func(j jobs.Job) string {
			if j.Cause == nil {
				return j.Machine
			}

			return cause(j.Cause.Reason, j.Cause.Message)
		}},
	}
}

// cause is why something is as it is, short enough for a table.
func cause(reason, message string) string {
	const most = 72

	text := cli.Line(strings.TrimSuffix(reason+": "+message, ": "))

	return screen.Clip(text, most)
}

// ready says of a condition list what kubectl would.
func ready(conditions []condition) []string {
	var out []string

	for _, c := range conditions {
		out = append(out, fmt.Sprintf("  %-18s %-8s %s", c.Type, c.Status, cause(c.Reason, "")))
		if c.Message != "" {
			out = append(out, "    "+cli.Line(c.Message))
		}
	}

	return out
}

// poolDetail tells all about a pool.
func poolDetail(p live.Pool) []string {
	out := []string{
		"Pool        " + p.Namespace + "/" + p.Name,
		fmt.Sprintf("Jobs        %d queued, %d running", p.Status.QueuedJobs, p.Status.RunningJobs),
		fmt.Sprintf("Machines    %d busy, %d idle, %d starting, %d on standby; %d wanted, %d to %d", p.Status.BusyReplicas, p.Idle(),
			p.Starting(), p.Status.StandbyReplicas, p.Status.DesiredReplicas, p.Spec.Scaling.MinReplicas, p.Spec.Scaling.MaxReplicas),
	}

	if p.Spec.Paused {
		out = append(out, "Paused      yes")
	}

	if f := p.Status.LastFailure; f != nil {
		out = append(out, "Last failure of "+f.Claim+" "+f.Node, "  "+cli.Line(f.Reason+": "+f.Message))
	}

	return append(append(out, "", "Conditions:"), ready(p.Status.Conditions)...)
}

// machineDetail tells all about a machine.
func machineDetail(claim *v1alpha1.MachineClaim) []string {
	out := []string{"Machine     " + claim.Namespace + "/" + cli.Line(jobs.Describe(jobs.VMOf(claim)))}

	if info := claim.Status.BootstrapInfo; info != nil {
		out = append(
			out,
			"Runner      "+info.RunnerName,
			"Job         "+info.Job,
			"Guest       "+cli.Line(info.GuestPhase+" "+info.GuestMessage),
		)
	}

	if b := claim.Status.Backoff; b != nil {
		out = append(
			out,
			fmt.Sprintf("%s failed %d times in a row, next try at %s", b.Step, b.Failures, b.Until.Format(time.TimeOnly)),
		)
	}

	return append(append(out, "", "Conditions:"), ready(claim.Status.Conditions)...)
}
