// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/hyperfleet/hyperfleet/cmd/internal/screen"
	"github.com/hyperfleet/hyperfleet/kit/procrun"
)

// Limits of the output after a failed run.
const (
	maxListedItems  = 10
	maxLogLines     = 20
	maxLogLineWidth = 400
)

// finish prints the report and stops all processes. With --hold, it stops them only after an interrupt.
// It returns errFailed if the run did not pass. The log of suspect is printed after a failure.
func (s *stack) finish(ctx context.Context, report *Report, suspect *procrun.Process, stdout io.Writer) error {
	keepsFiles := s.options.Keep || !report.Passed

	if !report.Passed {
		s.console.printText(s.explain(report, suspect))
	}

	if s.hasQueuedJobs && s.options.Output == outputText {
		s.console.printText("\n" + report.formatText())
	}

	if s.options.Hold {
		if err := s.hold(ctx); err != nil {
			s.console.printf("%v", err)
		}
	}

	if s.stopTracker != nil {
		s.stopTracker()
	}

	if err := s.stop(keepsFiles); err != nil {
		report.Problems = append(report.Problems, "stop: "+err.Error())
		report.Passed = false
		s.console.printf("stop: %v", err)
	}

	if keepsFiles {
		s.console.printf("logs and files are kept in %s", s.dir)
	}

	s.console.close()

	if s.options.Output == outputJSON {
		if err := report.writeJSON(stdout); err != nil {
			return err
		}
	}

	if !report.Passed {
		return errFailed
	}

	return nil
}

// explain returns a text with the problems, the objects that are left, and the last log lines of the
// suspect process.
func (s *stack) explain(report *Report, suspect *procrun.Process) string {
	var out strings.Builder

	out.WriteString("\nFAILED\n")
	writeList(&out, "", report.Problems)
	writeList(&out, "claims left", s.leftovers.claimNames)
	writeList(&out, "VMs left", s.leftovers.vmNames)
	writeList(&out, "ISOs left", s.leftovers.isoNames)
	writeList(&out, "runners left", s.leftovers.runnerNames)
	writeList(&out, "API violations", s.violations)

	if suspect != nil {
		s.writeTail(&out, suspect.Name(), suspect.LogTail())
	}

	// If jobs did not succeed, the console of the last VM may show the reason.
	if report.JobsCompleted < report.Jobs && s.lastConsole.text != "" {
		s.writeTail(&out, s.lastConsole.name, s.lastConsole.text)
	}

	return out.String()
}

func (s *stack) writeTail(out *strings.Builder, name, text string) {
	fmt.Fprintf(out, "  last lines of %s (%s):\n", name, s.logPath(name))

	for _, line := range lastLines(text) {
		out.WriteString("    " + screen.Clip(formatLogLine(line), maxLogLineWidth) + "\n")
	}
}

func writeList(out *strings.Builder, title string, items []string) {
	if len(items) == 0 {
		return
	}

	indent := "  "

	if title != "" {
		fmt.Fprintf(out, "  %s:\n", title)

		indent = "    "
	}

	for _, item := range items[:min(len(items), maxListedItems)] {
		out.WriteString(indent + "- " + item + "\n")
	}

	if more := len(items) - maxListedItems; more > 0 {
		fmt.Fprintf(out, "%s- and %d more\n", indent, more)
	}
}

func lastLines(text string) []string {
	lines := strings.Split(strings.TrimSpace(text), "\n")

	return lines[max(len(lines)-maxLogLines, 0):]
}
