// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/jobs"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/live"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/cmd/internal/screen"
)

// Indexes of the lists, in the order in which they are shown, and the number of lists.
const (
	listPools = iota
	listMachines
	listJobs
	listCount
)

// snapshot has the content of all lists at one time.
type snapshot struct {
	summary *live.Summary
	tables  [listCount]table
}

// table is the content of a list.
type table struct {
	columns []screen.Column[row]
	rows    []row
}

// row is one object of a list.
type row struct {
	objectKey client.ObjectKey
	tone      live.Tone
	cells     []cell
}

// cell is the content of a column for one object. Rows are sorted by number, and by text if the numbers are equal.
type cell struct {
	text   string
	number float64
}

func newText(text string) cell { return cell{text: cli.SanitizeLine(text)} }

func newNumber[N int | int32](n N) cell { return cell{strconv.Itoa(int(n)), float64(n)} }

func newSeconds(seconds float64) cell { return cell{jobs.FormatDuration(seconds), seconds} }

// column is a column of a list of objects, as screen.Column is a column of rows.
type column[T any] struct {
	title string
	right bool
	keep  int
	cell  func(T) cell
}

// newTable returns the list of objects with the given columns.
func newTable[T any](objects []T, columns []column[T], describe func(T) (client.ObjectKey, live.Tone)) table {
	var out table

	for i, c := range columns {
		out.columns = append(out.columns, screen.Column[row]{
			Title: c.title, Right: c.right, Keep: c.keep, Cell: func(r row) string { return r.cells[i].text },
		})
	}

	for _, object := range objects {
		r := row{}
		r.objectKey, r.tone = describe(object)

		for _, c := range columns {
			r.cells = append(r.cells, c.cell(object))
		}

		out.rows = append(out.rows, r)
	}

	return out
}

// selectRows returns the table with the rows that contain every word of the filter, in the order of the view. It
// marks the title of the column by which the rows are sorted.
func (t table) selectRows(v listView) table {
	out := table{columns: slices.Clone(t.columns)}

	for _, r := range t.rows {
		var text strings.Builder
		for _, c := range r.cells {
			text.WriteString(c.text + " ")
		}

		if live.ContainsWords(text.String(), v.filter) {
			out.rows = append(out.rows, r)
		}
	}

	if i := v.sortedBy - 1; i >= 0 {
		slices.SortStableFunc(out.rows, func(a, b row) int {
			return cmp.Or(cmp.Compare(a.cells[i].number, b.cells[i].number), cmp.Compare(a.cells[i].text, b.cells[i].text))
		})

		out.columns[i].Title += map[bool]string{false: "↑", true: "↓"}[v.isReversed]
		out.columns[i].Keep = maxKeep
	}

	if v.isReversed {
		slices.Reverse(out.rows)
	}

	return out
}

// maxKeep is the Keep of a column that is never removed before another one.
const maxKeep = 10

func newPoolTable(pools []live.Pool) table {
	return newTable(pools, []column[live.Pool]{
		{title: "POOL", keep: 9, cell: func(p live.Pool) cell { return newText(p.Name) }},
		{title: "NAMESPACE", keep: 1, cell: func(p live.Pool) cell { return newText(p.Namespace) }},
		{title: "STATE", keep: 8, cell: func(p live.Pool) cell { return newText(p.State()) }},
		{title: "QUEUED", right: true, keep: 8, cell: func(p live.Pool) cell { return newNumber(p.Status.QueuedJobs) }},
		{title: "BUSY", right: true, keep: 8, cell: func(p live.Pool) cell { return newNumber(p.Status.BusyReplicas) }},
		{title: "IDLE", right: true, keep: 6, cell: func(p live.Pool) cell { return newNumber(p.Idle()) }},
		{title: "STARTING", right: true, keep: 5, cell: func(p live.Pool) cell { return newNumber(p.Starting()) }},
		{title: "DESIRED", right: true, keep: 4, cell: func(p live.Pool) cell { return newNumber(p.Status.DesiredReplicas) }},
		{title: "MAX", right: true, keep: 4, cell: func(p live.Pool) cell { return newNumber(p.Spec.Scaling.MaxReplicas) }},
		{title: "MESSAGE", keep: 3, cell: func(p live.Pool) cell { return newText(screen.Clip(p.Ready.Message, maxMessage)) }},
	}, func(p live.Pool) (client.ObjectKey, live.Tone) {
		return client.ObjectKeyFromObject(p.RunnerPool), p.Tone()
	})
}

// machine is one row of the list of machines.
type machine struct {
	*v1alpha1.MachineClaim

	vm             jobs.VM
	pool, job      string
	ageSeconds     float64
	phaseOrPending string
}

func newMachineTable(machines []machine) table {
	return newTable(machines, []column[machine]{
		{title: "MACHINE", keep: 9, cell: func(m machine) cell { return newText(m.Name) }},
		{title: "PHASE", keep: 8, cell: func(m machine) cell { return newText(m.phaseOrPending) }},
		{title: "POOL", keep: 4, cell: func(m machine) cell { return newText(m.pool) }},
		{title: "NODE", keep: 5, cell: func(m machine) cell { return newText(m.vm.Node) }},
		{title: "VM", keep: 3, right: true, cell: func(m machine) cell { return newText(m.vm.ID) }},
		{title: "AGE", keep: 6, right: true, cell: func(m machine) cell { return newSeconds(m.ageSeconds) }},
		{title: "JOB", keep: 2, cell: func(m machine) cell { return newText(m.job) }},
		{title: "STATE", keep: 7, cell: func(m machine) cell { return newText(formatCause(m.vm.Reason, m.vm.Message)) }},
	}, func(m machine) (client.ObjectKey, live.Tone) {
		return client.ObjectKeyFromObject(m.MachineClaim), live.StateTone(m.phaseOrPending, "")
	})
}

func newJobTable(all []jobs.Job) table {
	return newTable(all, []column[jobs.Job]{
		{title: "JOB", keep: 9, cell: func(j jobs.Job) cell { return newText(cmp.Or(j.Name, j.Job)) }},
		{title: "STATE", keep: 8, cell: func(j jobs.Job) cell { return newText(cmp.Or(j.Conclusion, string(j.State))) }},
		{title: "REPOSITORY", keep: 5, cell: func(j jobs.Job) cell { return newText(j.Repository) }},
		{title: "POOL", keep: 4, cell: func(j jobs.Job) cell { return newText(j.Pool) }},
		{title: "WAITED", keep: 6, right: true, cell: func(j jobs.Job) cell { return newSeconds(j.WaitedSeconds) }},
		{title: "RAN", keep: 3, right: true, cell: func(j jobs.Job) cell {
			if j.RanSeconds == nil {
				return cell{number: -1}
			}

			return newSeconds(*j.RanSeconds)
		}},
		{title: "MACHINE OR CAUSE", keep: 7, cell: func(j jobs.Job) cell {
			if j.Cause == nil {
				return newText(j.Machine)
			}

			return newText(formatCause(j.Cause.Reason, j.Cause.Message))
		}},
	}, func(j jobs.Job) (client.ObjectKey, live.Tone) {
		return client.ObjectKey{Namespace: j.Namespace, Name: j.Job}, live.StateTone(string(j.State), j.Conclusion)
	})
}

// maxMessage is the maximum length of a message in a table.
const maxMessage = 72

// formatCause returns a reason and a message in one line that is short enough for a table.
func formatCause(reason, message string) string {
	return screen.Clip(cli.SanitizeLine(strings.TrimSuffix(reason+": "+message, ": ")), maxMessage)
}
