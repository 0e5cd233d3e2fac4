// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Phase is a step from a machine's start to its job. Its start is a console line that matches Line.
type Phase struct {
	Name string
	Line *regexp.Regexp
	// Time is the time of the console line.
	Time time.Time
}

// Phases returns the phases of a boot without their times. Phases that run in parallel may have another
// order.
func Phases() []Phase {
	line := regexp.MustCompile

	return []Phase{
		{Name: "initrd begins", Line: line(`^initrd: begins`)},
		{Name: "disk is mounted", Line: line(`^initrd: .* is mounted`)},
		{Name: "systemd begins", Line: line(`Welcome to |Starting `)},
		{Name: "cloud-init begins", Line: line(`Starting .*cloud-init-local`)},
		{Name: "cloud-init reads the cloud-init ISO", Line: line(`Cloud-init .* running 'init-local'`)},
		{Name: "cloud-init is done with it", Line: line(`Finished .*cloud-init-local`)},
		{Name: "network is up", Line: line(`Finished .*Wait for Network`)},
		{Name: "bootstrap service begins", Line: newReportPattern("Started")},
		{Name: "machine attests", Line: newReportPattern("Attesting")},
		{Name: "machine has its SVID", Line: newReportPattern("Attested")},
		{Name: "machine has its credential", Line: newReportPattern("Configuring")},
		{Name: "runner is online", Line: newReportPattern("Listening")},
		{Name: "job runs", Line: newReportPattern("Running")},
	}
}

// newReportPattern returns a pattern for the line that the bootstrap service writes for a phase.
func newReportPattern(phase string) *regexp.Regexp {
	return regexp.MustCompile(`"phase":"` + phase + `"`)
}

// ReachedPhases returns the phases that the machine has reached, with their times.
func ReachedPhases(console *Console) []Phase {
	var out []Phase

	for _, phase := range Phases() {
		if line, ok := console.FindFirst(phase.Line); ok {
			phase.Time = line.Time
			out = append(out, phase)
		}
	}

	return out
}

// FormatTable returns a table of the phases in the order of their times. It shows the time of each phase
// since startTime, since the phase before it, and as a percentage of total.
func FormatTable(startTime time.Time, phases []Phase, total time.Duration) string {
	phases = slices.Clone(phases)
	slices.SortStableFunc(phases, func(a, b Phase) int { return a.Time.Compare(b.Time) })

	var text strings.Builder

	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "phase\tseconds\tsince previous phase\tof untuned boot")

	previous := startTime

	for _, phase := range phases {
		elapsed := phase.Time.Sub(startTime)
		_, _ = fmt.Fprintf(w, "%s\t%6.1f\t%6.1f\t%4.0f %%\n",
			phase.Name, elapsed.Seconds(), phase.Time.Sub(previous).Seconds(), percent(elapsed, total))
		previous = phase.Time
	}

	_ = w.Flush()

	return text.String()
}

func percent(part, total time.Duration) float64 { return 100 * part.Seconds() / total.Seconds() }
