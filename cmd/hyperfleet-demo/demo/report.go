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

// Report is the outcome of a run. Its JSON form is the last line of standard output
// with --output json; docs/start/demo.md describes the fields.
type Report struct {
	// Passed says that every job ran, nothing is left, and no rule was broken.
	Passed bool `json:"passed"`
	// Problems say in words why it did not pass.
	Problems []string `json:"problems"`

	Jobs int `json:"jobs"`
	// JobsCompleted ran to success; JobsFailed ended in any other way.
	JobsCompleted int `json:"jobsCompleted"`
	JobsFailed    int `json:"jobsFailed"`

	VMsCreated int `json:"vmsCreated"`
	// VMCrashes are the VMs that a fault ended.
	VMCrashes int `json:"vmCrashes"`
	// VMsLeft counts the VMs that were not there at the start, and those of others that
	// were touched (ForeignVMsTouched).
	VMsLeft           int `json:"vmsLeft"`
	ForeignVMsTouched int `json:"foreignVMsTouched"`
	ClaimsLeft        int `json:"claimsLeft"`
	RunnersLeft       int `json:"runnersLeft"`
	ISOsLeft          int `json:"isosLeft"`

	// CallsPerVM is the mean of the hypervisor calls that speak of one VM or its ISO;
	// MaxCallsPerVM is that of the VM with the most, without ISOs. Listings and task
	// polls are shared, and are in TotalCalls only.
	CallsPerVM    float64        `json:"callsPerVM"`
	MaxCallsPerVM int            `json:"maxCallsPerVM"`
	TotalCalls    map[string]int `json:"totalCalls"`
	FailedCalls   int            `json:"failedCalls"`
	// PlatformCalls are the operator's calls to the CI platform since the first job, by the
	// simulator's names, and PlatformCallsPerJob all of them by the number of jobs. Runners'
	// own calls are not in them.
	PlatformCalls       map[string]int `json:"platformCalls"`
	PlatformCallsPerJob float64        `json:"platformCallsPerJob"`
	// KubernetesWrites are those that the API server took since the first job, by what is
	// written, and KubernetesWritesPerJob all of them by the number of jobs.
	// KubernetesConflicts are those that it refused, by what was to be written, since the object had
	// changed or was there already.
	KubernetesWrites       map[string]int `json:"kubernetesWrites"`
	KubernetesWritesPerJob float64        `json:"kubernetesWritesPerJob"`
	KubernetesConflicts    map[string]int `json:"kubernetesConflicts"`
	// Violations are calls to either simulator that no correct client makes.
	Violations int `json:"violations"`

	// MakespanSeconds is the time from the first webhook to the end of the last job,
	// FloorSeconds the best that the configured delays allow, Ratio the one by the other.
	MakespanSeconds float64 `json:"makespanSeconds"`
	FloorSeconds    float64 `json:"floorSeconds"`
	Ratio           float64 `json:"ratio"`
	// CleanupSeconds is the time from the end of the last job until nothing was left.
	CleanupSeconds float64 `json:"cleanupSeconds"`
	// RSSMiB is the operator's peak resident memory.
	RSSMiB float64 `json:"rssMiB"`

	Webhooks  Webhooks  `json:"webhooks"`
	Latencies Latencies `json:"latencies"`
	// Warm is there with --compare-warm.
	Warm *Warm `json:"warm,omitempty"`
}

// Webhooks counts deliveries of the simulated CI platform.
type Webhooks struct {
	Delivered  int `json:"delivered"`
	Failed     int `json:"failed"`
	Lost       int `json:"lost"`
	Duplicated int `json:"duplicated"`
}

// judge fills Passed and Problems from the numbers. Problems that were found before,
// such as a process that ended, stay.
func (r *Report) judge() {
	checks := []struct {
		bad  bool
		text string
	}{
		{r.JobsCompleted != r.Jobs, fmt.Sprintf("%d of %d jobs ran to success", r.JobsCompleted, r.Jobs)},
		{r.JobsFailed > 0, "failed: " + english.Plural(r.JobsFailed, "job", "")},
		{
			r.VMsLeft > r.ForeignVMsTouched,
			"left on the hypervisor: " + english.Plural(r.VMsLeft-r.ForeignVMsTouched, "VM", ""),
		},
		{r.ForeignVMsTouched > 0, "touched: " + english.Plural(r.ForeignVMsTouched, "VM", "") + " of others"},
		{r.ClaimsLeft > 0, "left: " + english.Plural(r.ClaimsLeft, "claim", "")},
		{r.RunnersLeft > 0, "left with the CI platform: " + english.Plural(r.RunnersLeft, "runner", "")},
		{r.ISOsLeft > 0, "left on the hypervisor's storage: " + english.Plural(r.ISOsLeft, "ISO", "")},
		{
			r.Warm == nil && r.VMsCreated > r.Jobs+r.VMCrashes,
			fmt.Sprintf("%d VMs were made for %d jobs and %d crashes", r.VMsCreated, r.Jobs, r.VMCrashes),
		},
		{r.Violations > 0, english.Plural(r.Violations, "call", "") + " against a simulator's rules"},
	}
	for _, check := range checks {
		if check.bad {
			r.Problems = append(r.Problems, check.text)
		}
	}

	r.Passed = len(r.Problems) == 0
}

// json writes the report as one line.
func (r *Report) json(w io.Writer) error {
	if r.Problems == nil {
		r.Problems = []string{}
	}

	if err := json.NewEncoder(w).Encode(r); err != nil {
		return fmt.Errorf("print report: %w", err)
	}

	return nil
}

// text writes the report for people.
func (r *Report) text() string {
	var out strings.Builder

	table := tabwriter.NewWriter(&out, 0, 0, screen.ColumnGap, ' ', 0)
	line := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(table, "  %s\t%s\n", name, fmt.Sprintf(format, args...))
	}

	line("jobs", "%d of %d ran to success, %d failed", r.JobsCompleted, r.Jobs, r.JobsFailed)
	line("left over", "%d VMs, %d claims, %d runners, %d ISOs", r.VMsLeft, r.ClaimsLeft, r.RunnersLeft, r.ISOsLeft)

	if r.FloorSeconds > 0 {
		line("makespan", "%.1f s, floor %.1f s, ratio %.2f", r.MakespanSeconds, r.FloorSeconds, r.Ratio)
	} else {
		line("makespan", "%.1f s", r.MakespanSeconds)
	}

	line("cleanup", "%.1f s after the last job", r.CleanupSeconds)
	line("hypervisor calls", "%.1f per VM for %d VMs (%s)", r.CallsPerVM, r.VMsCreated, classes(r.TotalCalls))
	line("CI platform calls", "%.1f per job (%s)", r.PlatformCallsPerJob, classes(r.PlatformCalls))
	line("Kubernetes writes", "%.1f per job (%s)", r.KubernetesWritesPerJob, classes(r.KubernetesWrites))
	line("conflicts", "%.2f per job (%s)", r.conflictsPerJob(), classes(r.KubernetesConflicts))
	line("webhooks", "%d delivered, %d failed, %d lost, %d duplicated",
		r.Webhooks.Delivered, r.Webhooks.Failed, r.Webhooks.Lost, r.Webhooks.Duplicated)
	line("operator memory", "%.1f MiB at its peak", r.RSSMiB)
	_ = table.Flush()

	out.WriteString("\n" + r.Latencies.table())

	if r.Warm != nil {
		out.WriteString(r.Warm.text())
	}

	return out.String()
}

// table writes the latencies for people.
func (l Latencies) table() string {
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
	all := 0
	for _, count := range r.KubernetesConflicts {
		all += count
	}

	return float64(all) / float64(max(r.Jobs, 1))
}

func classes(calls map[string]int) string {
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
