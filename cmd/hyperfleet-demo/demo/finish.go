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

// How much is told of what went wrong.
const (
	shownThings   = 10
	shownLogLines = 20
	shownLogWidth = 400
)

// finish says how it went, stops everything, at once or after it was held, and gives the
// error that stands for the exit code.
func (s *stack) finish(ctx context.Context, report *Report, blame *procrun.Process, stdout io.Writer) error {
	keep := s.options.Keep || !report.Passed

	if !report.Passed {
		s.console.text(s.explain(report, blame))
	}

	if s.queuedAny && s.options.Output == outputText {
		s.console.text("\n" + report.text())
	}

	if s.options.Hold {
		if err := s.hold(ctx); err != nil {
			s.console.linef("%v", err)
		}
	}

	if s.unfollow != nil {
		s.unfollow()
	}

	if err := s.stop(keep); err != nil {
		report.Problems = append(report.Problems, "stop: "+err.Error())
		report.Passed = false
		s.console.linef("stop: %v", err)
	}

	if keep {
		s.console.linef("logs and files are kept in %s", s.dir)
	}

	s.console.close()

	if s.options.Output == outputJSON {
		if err := report.json(stdout); err != nil {
			return err
		}
	}

	if !report.Passed {
		return errFailed
	}

	return nil
}

// explain says what is wrong, what is left, and what the log of whoever is to blame says.
func (s *stack) explain(report *Report, blame *procrun.Process) string {
	var out strings.Builder

	out.WriteString("\nFAILED\n")
	list(&out, "", report.Problems)
	list(&out, "claims left", s.left.claimNames)
	list(&out, "VMs left", s.left.vmNames)
	list(&out, "ISOs left", s.left.isoNames)
	list(&out, "runners left", s.left.runnerNames)
	list(&out, "rules broken", s.violations)

	if blame != nil {
		s.tail(&out, blame.Name(), blame.LogTail())
	}

	// Jobs that did not run, and VMs that did: their guests may know why.
	if report.JobsCompleted < report.Jobs && s.lastConsole.text != "" {
		s.tail(&out, s.lastConsole.name, s.lastConsole.text)
	}

	return out.String()
}

func (s *stack) tail(out *strings.Builder, name, text string) {
	fmt.Fprintf(out, "  last lines of %s (%s):\n", name, s.logPath(name))

	for _, line := range lastLines(text) {
		out.WriteString("    " + screen.Clip(readable(line), shownLogWidth) + "\n")
	}
}

func list(out *strings.Builder, title string, things []string) {
	if len(things) == 0 {
		return
	}

	indent := "  "

	if title != "" {
		fmt.Fprintf(out, "  %s:\n", title)

		indent = "    "
	}

	for _, thing := range things[:min(len(things), shownThings)] {
		out.WriteString(indent + "- " + thing + "\n")
	}

	if more := len(things) - shownThings; more > 0 {
		fmt.Fprintf(out, "%s- and %d more\n", indent, more)
	}
}

func lastLines(text string) []string {
	lines := strings.Split(strings.TrimSpace(text), "\n")

	return lines[max(len(lines)-shownLogLines, 0):]
}
