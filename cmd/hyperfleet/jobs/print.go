// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

const (
	// maxCause bounds the cause in the table, in letters.
	maxCause = 100
	// maxComing bounds the machines that are named for a job that waits.
	maxComing = 5
	// lastLines of the log are shown unasked.
	lastLines = 20
)

// printer writes for people and for programs.
type printer struct {
	out io.Writer
	now time.Time
	// location that people read times in.
	location *time.Location
}

// list prints the table, or its JSON.
func (p printer) list(jobs []v1alpha1.RunnerJob, opts options) error {
	views := make([]Job, 0, len(jobs))
	for i := range jobs {
		views = append(views, View(&jobs[i], p.now))
	}

	if opts.output == cli.OutputJSON {
		return cli.JSON(p.out, map[string]any{"jobs": views})
	}

	if len(views) == 0 {
		fmt.Fprintln(p.out, "No jobs.")

		return nil
	}

	table := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	header := "JOB\tSTATE\tPOOL\tREPOSITORY\tNAME\tWAITING/RUNNING FOR\tMACHINE\tCAUSE"

	if opts.all {
		header = "NAMESPACE\t" + header
	}

	fmt.Fprintln(table, header)

	for _, job := range views {
		cells := []string{
			job.Job, stateOf(job), job.Pool, job.Repository, job.Name, span(job), job.Machine, shortCause(job.Cause),
		}
		if opts.all {
			cells = append([]string{job.Namespace}, cells...)
		}

		for i, cell := range cells {
			if cells[i] = cli.Line(cell); cell == "" && i < len(cells)-1 {
				cells[i] = "-"
			}
		}

		fmt.Fprintln(table, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
	}

	if err := table.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}

	return nil
}

// stateOf is the state with its conclusion.
func stateOf(job Job) string {
	if job.Conclusion != "" {
		return string(job.State) + " (" + job.Conclusion + ")"
	}

	return string(job.State)
}

// span is how long a job has waited, or else how long it ran.
func span(job Job) string {
	if job.RanSeconds != nil {
		return Human(*job.RanSeconds)
	}

	return Human(job.WaitedSeconds)
}

// Human is a time in the words of kubectl: 90s, 5m30s, 2d.
func Human(seconds float64) string {
	return duration.HumanDuration(time.Duration(seconds * float64(time.Second)))
}

// shortCause is a cause in one line of the table.
func shortCause(cause *Cause) string {
	if cause == nil {
		return ""
	}

	text := []rune(strings.TrimSuffix(cause.Reason+": "+cause.Message, ": "))
	if len(text) > maxCause {
		return strings.TrimSpace(string(text[:maxCause-3])) + "..."
	}

	return string(text)
}

// Write tells all about a job in words, with the last lines of its log.
func Write(out io.Writer, of Explained, now time.Time, location *time.Location) {
	p := printer{out, now, location}
	_ = p.explain(of, cli.OutputTable, false) // only JSON can fail
}

// explain prints a job's details, or its JSON.
func (p printer) explain(view Explained, output string, all bool) error {
	if output == cli.OutputJSON {
		return cli.JSON(p.out, view)
	}

	p.facts(view)
	p.machines("Machines that may take it:", view.Coming)
	p.machines("Machines of its pool that failed, and are kept to be looked at:", view.Kept)
	p.timeline(view.Timeline)
	p.log(view, all)

	return nil
}

func (p printer) facts(job Explained) {
	table := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	row := func(what, text string) {
		if text != "" {
			fmt.Fprintf(table, "%s\t%s\n", what, cli.Line(text))
		}
	}

	row("Job", job.Namespace+"/"+job.Job.Job)
	row("Name", job.Name)
	row("Repository", job.Repository)
	row("Workflow", job.Workflow)
	row("Platform", job.Platform+", id "+job.PlatformID)
	row("URL", job.URL)
	row("Labels", strings.Join(job.Labels, ", "))
	row("State", p.state(job.Job))

	if job.Cause != nil {
		row("Cause", job.Cause.Reason+": "+job.Cause.Message)
	}

	row("Pool", job.Pool)
	row("Machine", machine(job))
	row("Runner", job.Runner)
	row("Trace", job.TraceID)

	_ = table.Flush() // a reader that went away needs no error
}

// state says how a job is, and for how long.
func (p printer) state(job Job) string {
	waited := "waited " + Human(job.WaitedSeconds)

	switch {
	case waitsIn(job.State):
		return string(job.State) + ", " + waited + " so far"
	case job.RanSeconds == nil:
		return stateOf(job) + ", " + waited + ", did not run"
	case job.State == v1alpha1.JobRunning:
		return stateOf(job) + ", " + waited + ", runs for " + Human(*job.RanSeconds)
	default:
		return stateOf(job) + ", " + waited + ", ran for " + Human(*job.RanSeconds)
	}
}

func waitsIn(state v1alpha1.JobState) bool {
	return state == v1alpha1.JobQueued || state == v1alpha1.JobWaiting
}

func machine(job Explained) string {
	switch {
	case job.VM != nil:
		return Describe(*job.VM)
	case job.Machine != "":
		return job.Machine + ", gone"
	default:
		return ""
	}
}

// Describe is a machine in words.
func Describe(vm VM) string {
	out := vm.Claim
	if vm.Phase != "" {
		out += ", " + vm.Phase
	}

	if vm.ID != "" {
		out += ", VM " + vm.ID
	}

	if vm.Node != "" {
		out += " on node " + vm.Node
	}

	if vm.Cluster != "" {
		out += " of " + vm.Cluster
	}

	if vm.IP != "" {
		out += ", " + vm.IP
	}

	if vm.Reason != "" {
		out += strings.TrimSuffix(" ("+vm.Reason+": "+vm.Message, ": ") + ")"
	}

	return out
}

func (p printer) machines(title string, machines []VM) {
	if len(machines) == 0 {
		return
	}

	fmt.Fprintln(p.out, "\n"+title)

	for _, vm := range machines[:min(len(machines), maxComing)] {
		fmt.Fprintln(p.out, "  "+cli.Line(Describe(vm)))
	}

	if more := len(machines) - maxComing; more > 0 {
		fmt.Fprintf(p.out, "  and %d more\n", more)
	}
}

func (p printer) timeline(moments []Moment) {
	if len(moments) == 0 {
		fmt.Fprintln(p.out, "\nNo timeline yet: the operator has not looked at the job.")

		return
	}

	first := moments[0].Time.In(p.location)
	fmt.Fprintf(p.out, "\nTimeline, from %s:\n", first.Format("2006-01-02 15:04:05 MST"))

	table := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)

	for i, m := range moments {
		after := ""
		if i > 0 {
			after = "+" + Between(m.AfterSeconds)
		}

		fmt.Fprintln(table, strings.TrimRight(fmt.Sprintf("  %s\t%s\t%s\t%s",
			m.Time.In(p.location).Format("15:04:05"), after, m.Moment, cli.Line(m.Message)), "\t "))
	}

	_ = table.Flush() // a reader that went away needs no error
}

// Between is a time between two moments: exact where it is short.
func Between(seconds float64) string {
	const exact = 10

	switch {
	case seconds < 1:
		return fmt.Sprintf("%dms", int(seconds*1000))
	case seconds < exact:
		return fmt.Sprintf("%.1fs", seconds)
	default:
		return Human(seconds)
	}
}

func (p printer) log(view Explained, all bool) {
	if view.Log == nil {
		p.noLog(view, all)

		return
	}

	text := strings.Split(strings.TrimRight(cli.Safe(*view.Log), "\n"), "\n")
	title := "Log, as kept in RunnerLog " + view.Logs
	if view.LogURL != "" {
		title = "Log, as kept in " + cli.Line(view.LogURL)
	}

	if view.NotStored != "" {
		title += " (the log store did not take it: " + cli.Line(view.NotStored) + ")"
	}

	if view.LogCut && (all || len(text) <= lastLines) {
		title += " (its beginning was cut off)"
	}

	if !all && len(text) > lastLines {
		title = fmt.Sprintf("Log, the last %d of %d lines (--log prints all)", lastLines, len(text))
		text = text[len(text)-lastLines:]
	}

	fmt.Fprintf(p.out, "\n%s:\n", title)

	for _, line := range text {
		fmt.Fprintln(p.out, "  "+line)
	}
}

func (p printer) noLog(of Explained, asked bool) {
	switch {
	case of.NoLog != "":
		fmt.Fprintf(p.out, "\nNo log: %s.\n", cli.Line(of.NoLog))
	case of.VM == nil && of.Machine == "":
		if asked {
			fmt.Fprintln(p.out, "\nNo log: the job has had no machine.")
		}
	case asked || of.State == v1alpha1.JobCompleted:
		fmt.Fprintln(p.out, "\nNo log was kept: its machine sends it with its last report, and has sent none.")
	}
}
