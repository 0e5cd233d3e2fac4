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

// Phase is a moment on a machine's way to its job, told by a line of its console.
type Phase struct {
	Name string
	Line *regexp.Regexp
	At   time.Time
}

// Phases of a boot, by their lines. Those of a parallel boot need not come in this order.
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
		{Name: "bootstrap service begins", Line: report("Started")},
		{Name: "machine attests", Line: report("Attesting")},
		{Name: "machine has its SVID", Line: report("Attested")},
		{Name: "machine has its credential", Line: report("Configuring")},
		{Name: "runner is online", Line: report("Listening")},
		{Name: "job runs", Line: report("Running")},
	}
}

// report is the line that the bootstrap service writes for a phase.
func report(phase string) *regexp.Regexp { return regexp.MustCompile(`"phase":"` + phase + `"`) }

// Times gives the phases that the console tells of.
func Times(console *Console) []Phase {
	var out []Phase

	for _, phase := range Phases() {
		if line, ok := console.First(phase.Line); ok {
			phase.At = line.At
			out = append(out, phase)
		}
	}

	return out
}

// Table shows when each phase was, after the beginning and after the one before it, and as a
// part of a whole.
func Table(begun time.Time, phases []Phase, whole time.Duration) string {
	phases = slices.Clone(phases)
	slices.SortStableFunc(phases, func(a, b Phase) int { return a.At.Compare(b.At) })

	var text strings.Builder

	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "phase\tseconds\tsince the last\tof the untuned boot")

	last := begun

	for _, phase := range phases {
		at := phase.At.Sub(begun)
		_, _ = fmt.Fprintf(w, "%s\t%6.1f\t%6.1f\t%4.0f %%\n",
			phase.Name, at.Seconds(), phase.At.Sub(last).Seconds(), percent(at, whole))
		last = phase.At
	}

	_ = w.Flush()

	return text.String()
}

func percent(part, whole time.Duration) float64 { return 100 * part.Seconds() / whole.Seconds() }
