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
	"github.com/hyperfleet/hyperfleet/cmd/internal/screen"
)

const (
	// maxCause is the maximum length of the cause in the table, in characters.
	maxCause = 100
	// maxMachines is the maximum number of machines that are listed for a waiting job.
	maxMachines = 5
	// lastLines is the number of lines of the log that are printed without --log.
	lastLines = 20
)

// printer writes the details of a job as text.
type printer struct {
	out io.Writer
	// location is the time zone of the printed times.
	location *time.Location
}

// newList returns the list of jobs in all formats. The table has the namespaces if allNamespaces is true.
func newList(jobs []v1alpha1.RunnerJob, now time.Time, allNamespaces bool) cli.Content {
	views, names := make([]Job, 0, len(jobs)), make([]string, 0, len(jobs))

	for i := range jobs {
		views = append(views, NewJob(&jobs[i], now))
		names = append(names, objectName(&jobs[i]))
	}

	return cli.Content{Data: map[string]any{"jobs": views}, Names: names, Print: func(out io.Writer, isWide bool) error {
		if len(views) == 0 {
			_, err := fmt.Fprintln(out, "No jobs found.")

			return err
		}

		return cli.PrintTable(out, views, listColumns(allNamespaces, isWide), isWide)
	}}
}

// objectName returns the name of a RunnerJob as kubectl prints it.
func objectName(job *v1alpha1.RunnerJob) string {
	return cli.ObjectName(v1alpha1.GroupVersion.Group, "RunnerJob", job.Name)
}

// listColumns returns the columns of the list of jobs. The cause is last, because it is long.
func listColumns(allNamespaces, isWide bool) []screen.Column[Job] {
	columns := []screen.Column[Job]{
		{Title: "JOB", Cell: func(j Job) string { return j.Job }},
		{Title: "STATE", Cell: formatState},
		{Title: "POOL", Cell: func(j Job) string { return j.Pool }},
		{Title: "REPOSITORY", Cell: func(j Job) string { return j.Repository }},
		{Title: "NAME", Cell: func(j Job) string { return j.Name }},
		{Title: "WAITING/RUNNING FOR", Cell: formatWaitOrRun},
		{Title: "MACHINE", Cell: func(j Job) string { return j.Machine }},
		{Title: "RUNNER", Wide: true, Cell: func(j Job) string { return j.Runner }},
		{Title: "WORKFLOW", Wide: true, Cell: func(j Job) string { return j.Workflow }},
		{Title: "LABELS", Wide: true, Cell: func(j Job) string { return strings.Join(j.Labels, ",") }},
		{Title: "URL", Wide: true, Cell: func(j Job) string { return j.URL }},
		{Title: "CAUSE", Cell: func(j Job) string { return formatCause(j.Cause, isWide) }},
	}

	if allNamespaces {
		return append([]screen.Column[Job]{{Title: "NAMESPACE", Cell: func(j Job) string { return j.Namespace }}}, columns...)
	}

	return columns
}

// formatState returns the state of a job, with its conclusion if it has one.
func formatState(job Job) string {
	if job.Conclusion != "" {
		return string(job.State) + " (" + job.Conclusion + ")"
	}

	return string(job.State)
}

// formatWaitOrRun returns how long a job has run, or how long it has waited if it has not started.
func formatWaitOrRun(job Job) string {
	if job.RanSeconds != nil {
		return FormatDuration(*job.RanSeconds)
	}

	return FormatDuration(job.WaitedSeconds)
}

// FormatDuration returns a duration in the format of kubectl: 90s, 5m30s, 2d.
func FormatDuration(seconds float64) string {
	return duration.HumanDuration(time.Duration(seconds * float64(time.Second)))
}

// formatCause returns the cause, and "" if there is no cause. Unless isWhole is true, it returns at most
// maxCause characters.
func formatCause(cause *Cause, isWhole bool) string {
	if cause == nil {
		return ""
	}

	text := []rune(strings.TrimSuffix(cause.Reason+": "+cause.Message, ": "))
	if len(text) > maxCause && !isWhole {
		return strings.TrimSpace(string(text[:maxCause-3])) + "..."
	}

	return string(text)
}

// endOfLog and wholeLog are the values of the parameters isWholeLog.
const endOfLog, wholeLog = false, true

// WriteDetails prints the details of a job as text, with the last lines of its log.
func WriteDetails(out io.Writer, details Details, location *time.Location) {
	printer{out, location}.printDetails(details, endOfLog)
}

// WriteLog prints the whole log of a job, or the reason why there is none.
func WriteLog(out io.Writer, details Details) { printer{out: out}.printLog(details, wholeLog) }

// printDetails prints the details of a job, with the last lines of its log, or with the whole log if isWholeLog
// is true.
func (p printer) printDetails(details Details, isWholeLog bool) {
	p.printFacts(details)
	p.printMachines("Machines that may run the job:", details.Coming)
	p.printMachines("Failed machines of the pool that are kept for inspection:", details.Kept)
	p.printTimeline(details.Timeline)
	p.printLog(details, isWholeLog)
}

func (p printer) printFacts(job Details) {
	var text strings.Builder

	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	row := func(title, value string) {
		if value != "" {
			fmt.Fprintf(table, "%s\t%s\n", title, cli.SanitizeLine(value))
		}
	}

	row("Job", job.Namespace+"/"+job.Job.Job)
	row("Name", job.Name)
	row("Repository", job.Repository)
	row("Workflow", job.Workflow)
	row("Platform", job.Platform+", ID "+job.PlatformID)
	row("URL", job.URL)
	row("Labels", strings.Join(job.Labels, ", "))
	row("State", p.formatStateAndTimes(job.Job))

	if job.Cause != nil {
		row("Cause", job.Cause.Reason+": "+job.Cause.Message)
	}

	row("Pool", job.Pool)
	row("Machine", formatMachine(job))
	row("Runner", job.Runner)
	row("Trace", job.TraceID)

	_ = table.Flush()
	fmt.Fprint(p.out, cli.FitTerminal(p.out, text.String())) // a closed output is not an error
}

// formatStateAndTimes returns the state of a job, and how long the job has waited and run.
func (p printer) formatStateAndTimes(job Job) string {
	waited := "waited " + FormatDuration(job.WaitedSeconds)

	switch {
	case isWaitingState(job.State):
		return string(job.State) + ", " + waited + " so far"
	case job.RanSeconds == nil:
		return formatState(job) + ", " + waited + ", did not run"
	case job.State == v1alpha1.JobRunning:
		return formatState(job) + ", " + waited + ", running for " + FormatDuration(*job.RanSeconds)
	default:
		return formatState(job) + ", " + waited + ", ran for " + FormatDuration(*job.RanSeconds)
	}
}

func isWaitingState(state v1alpha1.JobState) bool {
	return state == v1alpha1.JobQueued || state == v1alpha1.JobWaiting
}

func formatMachine(job Details) string {
	switch {
	case job.VM != nil:
		return DescribeMachine(*job.VM)
	case job.Machine != "":
		return job.Machine + ", deleted"
	default:
		return ""
	}
}

// DescribeMachine returns one line about a machine: its claim, phase, VM, node, cluster, address, and the
// reason and message of its condition Ready. It leaves out what is unknown.
func DescribeMachine(vm VM) string {
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

func (p printer) printMachines(title string, machines []VM) {
	if len(machines) == 0 {
		return
	}

	fmt.Fprintln(p.out, "\n"+title)

	for _, vm := range machines[:min(len(machines), maxMachines)] {
		fmt.Fprintln(p.out, "  "+cli.SanitizeLine(DescribeMachine(vm)))
	}

	if more := len(machines) - maxMachines; more > 0 {
		fmt.Fprintf(p.out, "  and %d more\n", more)
	}
}

func (p printer) printTimeline(timeline []TimelineEntry) {
	if len(timeline) == 0 {
		fmt.Fprintln(p.out, "\nNo timeline yet: the operator has not reconciled the job.")

		return
	}

	first := timeline[0].Time.In(p.location)
	fmt.Fprintf(p.out, "\nTimeline, from %s:\n", first.Format("2006-01-02 15:04:05 MST"))

	var text strings.Builder

	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)

	for i, entry := range timeline {
		elapsed := ""
		if i > 0 {
			elapsed = "+" + FormatInterval(entry.AfterSeconds)
		}

		fmt.Fprintln(table, strings.TrimRight(fmt.Sprintf("  %s\t%s\t%s\t%s",
			entry.Time.In(p.location).Format("15:04:05"), elapsed, cli.SanitizeLine(string(entry.Moment)),
			cli.SanitizeLine(entry.Message)), "\t "))
	}

	_ = table.Flush()
	fmt.Fprint(p.out, cli.FitTerminal(p.out, text.String())) // a closed output is not an error
}

// FormatInterval returns the time between two events: in milliseconds below 1 s, with one decimal below 10 s,
// and in the format of kubectl otherwise.
func FormatInterval(seconds float64) string {
	const decimalBelow = 10 // seconds

	switch {
	case seconds < 1:
		return fmt.Sprintf("%dms", int(seconds*1000))
	case seconds < decimalBelow:
		return fmt.Sprintf("%.1fs", seconds)
	default:
		return FormatDuration(seconds)
	}
}

func (p printer) printLog(details Details, isWholeLog bool) {
	if details.Log == nil {
		p.printNoLog(details, isWholeLog)

		return
	}

	lines := strings.Split(strings.TrimRight(cli.Sanitize(*details.Log), "\n"), "\n")
	title := "Log, from RunnerLog " + details.Logs
	if details.LogURL != "" {
		title = "Log, from " + details.LogURL
	}

	if details.NotStored != "" {
		title += " (the log store rejected the log: " + details.NotStored + ")"
	}

	if details.LogCut && (isWholeLog || len(lines) <= lastLines) {
		title += " (the beginning is missing)"
	}

	if !isWholeLog && len(lines) > lastLines {
		title = fmt.Sprintf("Log, the last %d of %d lines (--log prints all)", lastLines, len(lines))
		lines = lines[len(lines)-lastLines:]
	}

	fmt.Fprintf(p.out, "\n%s:\n", cli.SanitizeLine(title))

	for _, line := range lines {
		fmt.Fprintln(p.out, "  "+line)
	}
}

// printNoLog prints why there is no log. Without --log, it prints nothing for a job that has not completed,
// unless the log exists and could not be read.
func (p printer) printNoLog(details Details, isWholeLog bool) {
	switch {
	case details.LogProblem != "":
		fmt.Fprintf(p.out, "\nNo log: %s.\n", cli.SanitizeLine(details.LogProblem))
	case details.VM == nil && details.Machine == "":
		if isWholeLog {
			fmt.Fprintln(p.out, "\nNo log: the job never had a machine.")
		}
	case isWholeLog || details.State == v1alpha1.JobCompleted:
		fmt.Fprintln(p.out, "\nNo log: the machine sends the log with its last report, and no log has arrived.")
	}
}
