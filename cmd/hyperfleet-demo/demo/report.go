// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize/english"

	"github.com/hyperfleet/hyperfleet/cmd/internal/screen"
)

// Report is the result of a run. With --output json, its JSON form is the last line of standard output.
// docs/start/demo.md describes the fields.
type Report struct {
	// Passed is true if every job succeeded, nothing is left, and no rule of a simulator was violated.
	Passed bool `json:"passed"`
	// Problems are the reasons why the run did not pass.
	Problems []string `json:"problems"`

	Jobs int `json:"jobs"`
	// JobsCompleted is the number of jobs that succeeded. JobsFailed counts all other finished jobs.
	JobsCompleted int `json:"jobsCompleted"`
	JobsFailed    int `json:"jobsFailed"`

	VMsCreated int `json:"vmsCreated"`
	// VMCrashes is the number of VMs that the fault vm-crash stopped.
	VMCrashes int `json:"vmCrashes"`
	// VMsLeft is the number of VMs that did not exist before the first job, plus ForeignVMsTouched, the
	// number of VMs of other owners that were changed or deleted.
	VMsLeft           int `json:"vmsLeft"`
	ForeignVMsTouched int `json:"foreignVMsTouched"`
	ClaimsLeft        int `json:"claimsLeft"`
	RunnersLeft       int `json:"runnersLeft"`
	ISOsLeft          int `json:"isosLeft"`

	// CallsPerVM is the mean number of hypervisor calls for a VM or its ISO. MaxCallsPerVM is the highest
	// number of calls for one VM, without calls for ISOs. List calls and task polls serve many VMs and are
	// counted in TotalCalls only.
	CallsPerVM    float64        `json:"callsPerVM"`
	MaxCallsPerVM int            `json:"maxCallsPerVM"`
	TotalCalls    map[string]int `json:"totalCalls"`
	FailedCalls   int            `json:"failedCalls"`
	// PlatformCalls are the operator's calls to the CI platform since the first job, by the simulator's
	// names. They do not include calls of runners. PlatformCallsPerJob is their total divided by the
	// number of jobs.
	PlatformCalls       map[string]int `json:"platformCalls"`
	PlatformCallsPerJob float64        `json:"platformCallsPerJob"`
	// KubernetesWrites are the writes that the API server has accepted since the first job, by resource and
	// subresource or verb. KubernetesWritesPerJob is their total divided by the number of jobs.
	// KubernetesConflicts are the writes that the API server rejected because the object had changed or
	// already existed.
	KubernetesWrites       map[string]int `json:"kubernetesWrites"`
	KubernetesWritesPerJob float64        `json:"kubernetesWritesPerJob"`
	KubernetesConflicts    map[string]int `json:"kubernetesConflicts"`
	// Violations is the number of calls to both simulators that no correct client makes.
	Violations int `json:"violations"`

	// MakespanSeconds is the time from the first queued job to the end of the last job. FloorSeconds is the
	// shortest time that the configured delays allow. Ratio is MakespanSeconds divided by FloorSeconds.
	MakespanSeconds float64 `json:"makespanSeconds"`
	FloorSeconds    float64 `json:"floorSeconds"`
	Ratio           float64 `json:"ratio"`
	// CleanupSeconds is the time from the end of the last job until all objects were deleted.
	CleanupSeconds float64 `json:"cleanupSeconds"`
	// RSSMiB is the operator's peak resident memory.
	RSSMiB float64 `json:"rssMiB"`

	Webhooks  Webhooks  `json:"webhooks"`
	Latencies Latencies `json:"latencies"`
	// Warm is set with --compare-warm only.
	Warm *Warm `json:"warm,omitempty"`
}

// Webhooks has the number of webhook deliveries of the simulated CI platform by outcome.
type Webhooks struct {
	Delivered  int `json:"delivered"`
	Failed     int `json:"failed"`
	Lost       int `json:"lost"`
	Duplicated int `json:"duplicated"`
}

// evaluate sets Passed and adds Problems from the numbers. It keeps earlier problems, for example a
// process that exited.
func (r *Report) evaluate() {
	checks := []struct {
		isBad bool
		text  string
	}{
		{r.JobsCompleted != r.Jobs, fmt.Sprintf("%d of %d jobs succeeded", r.JobsCompleted, r.Jobs)},
		{r.JobsFailed > 0, english.Plural(r.JobsFailed, "job", "") + " failed"},
		{
			r.VMsLeft > r.ForeignVMsTouched,
			english.Plural(r.VMsLeft-r.ForeignVMsTouched, "VM", "") + " left on the hypervisor",
		},
		{r.ForeignVMsTouched > 0, english.Plural(r.ForeignVMsTouched, "VM", "") + " of other owners modified"},
		{r.ClaimsLeft > 0, english.Plural(r.ClaimsLeft, "claim", "") + " left"},
		{r.RunnersLeft > 0, english.Plural(r.RunnersLeft, "runner", "") + " left at the CI platform"},
		{r.ISOsLeft > 0, english.Plural(r.ISOsLeft, "ISO", "") + " left on the hypervisor's storage"},
		{
			r.Warm == nil && r.VMsCreated > r.Jobs+r.VMCrashes,
			fmt.Sprintf("%d VMs were created for %d jobs and %d crashes", r.VMsCreated, r.Jobs, r.VMCrashes),
		},
		{r.Violations > 0, english.Plural(r.Violations, "call", "") + " violated the rules of a simulator"},
	}
	for _, check := range checks {
		if check.isBad {
			r.Problems = append(r.Problems, check.text)
		}
	}

	r.Passed = len(r.Problems) == 0
}

// writeJSON writes the report as one line of JSON.
func (r *Report) writeJSON(w io.Writer) error {
	if r.Problems == nil {
		r.Problems = []string{}
	}

	if err := json.NewEncoder(w).Encode(r); err != nil {
		return fmt.Errorf("write report: %w", err)
	}

	return nil
}

// formatText returns the report as a table.
func (r *Report) formatText() string {
	var out strings.Builder

	table := tabwriter.NewWriter(&out, 0, 0, screen.ColumnGap, ' ', 0)
	line := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(table, "  %s\t%s\n", name, fmt.Sprintf(format, args...))
	}

	line("jobs", "%d of %d succeeded, %d failed", r.JobsCompleted, r.Jobs, r.JobsFailed)
	line("left over", "%d VMs, %d claims, %d runners, %d ISOs", r.VMsLeft, r.ClaimsLeft, r.RunnersLeft, r.ISOsLeft)

	if r.FloorSeconds > 0 {
		line("makespan", "%.1f s, floor %.1f s, ratio %.2f", r.MakespanSeconds, r.FloorSeconds, r.Ratio)
	} else {
		line("makespan", "%.1f s", r.MakespanSeconds)
	}

	line("cleanup", "%.1f s after the last job", r.CleanupSeconds)
	line("hypervisor calls", "%.1f per VM for %d VMs (%s)", r.CallsPerVM, r.VMsCreated, formatCounts(r.TotalCalls))
	line("CI platform calls", "%.1f per job (%s)", r.PlatformCallsPerJob, formatCounts(r.PlatformCalls))
	line("Kubernetes writes", "%.1f per job (%s)", r.KubernetesWritesPerJob, formatCounts(r.KubernetesWrites))
	line("conflicts", "%.2f per job (%s)", r.conflictsPerJob(), formatCounts(r.KubernetesConflicts))
	line("webhooks", "%d delivered, %d failed, %d lost, %d duplicated",
		r.Webhooks.Delivered, r.Webhooks.Failed, r.Webhooks.Lost, r.Webhooks.Duplicated)
	line("operator memory", "%.1f MiB at its peak", r.RSSMiB)
	_ = table.Flush()

	out.WriteString("\n" + r.Latencies.formatTable())

	if r.Warm != nil {
		out.WriteString(r.Warm.formatText())
	}

	return out.String()
}

// formatTable returns the latencies as a table.
func (l Latencies) formatTable() string {
	var out strings.Builder

	fmt.Fprintf(&out, "  %-22s %8s %8s %8s %6s\n", "PHASE", "P50", "P95", "MAX", "COUNT")

	for _, p := range l.phases() {
		if p.latency.Count == 0 {
			fmt.Fprintf(&out, "  %-22s %8s %8s %8s %6d\n", p.name, "-", "-", "-", 0)

			continue
		}

		fmt.Fprintf(&out, "  %-22s %7.2fs %7.2fs %7.2fs %6d\n",
			p.name, p.latency.P50, p.latency.P95, p.latency.Max, p.latency.Count)
	}

	return out.String()
}

func (r *Report) conflictsPerJob() float64 {
	total := 0
	for _, count := range r.KubernetesConflicts {
		total += count
	}

	return float64(total) / float64(max(r.Jobs, 1))
}

func formatCounts(calls map[string]int) string {
	names := make([]string, 0, len(calls))
	for name := range calls {
		names = append(names, name)
	}

	slices.Sort(names)

	parts := make([]string, 0, len(names))
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%s %d", name, calls[name]))
	}

	return strings.Join(parts, ", ")
}
