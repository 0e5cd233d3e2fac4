// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// maxSlowest is the maximum number of packages and of tests in the list of the slowest ones.
	maxSlowest = 10
	// maxQuotedLines is the maximum number of output lines of a flaky package that are printed for each run.
	maxQuotedLines = 60
)

// runSummary prints the last lines of a run.
type runSummary struct {
	out io.Writer
	// first is the report of the run. second is the report of the second attempt, or nil if there was none.
	first, second *report
	// cpu is the CPU time of packages by their path in the module. total is the CPU time of the whole run,
	// including building and linking.
	cpu      map[string]time.Duration
	total    time.Duration
	duration time.Duration
	// servers is the part of total that the shared servers used.
	servers time.Duration
	planes  int
}

// print prints the summary. It returns true if tests ran and none of them failed in both attempts, and also if
// all tests were skipped.
func (c *runSummary) print() bool {
	var (
		skipped, failures, flaky []string
		passed, failed           int
	)

	for _, name := range slices.Sorted(maps.Keys(c.first.packages)) {
		pkg := c.first.packages[name]

		if c.second != nil && c.second.packages[name] != nil {
			pkg = pkg.merge(c.second.packages[name])
			if !pkg.hasFailed {
				flaky = append(flaky, name)
			}
		}

		passed, failed = passed+pkg.passed, failed+pkg.failed
		skipped, failures = append(skipped, pkg.skipped...), append(failures, pkg.failures...)
	}

	for _, line := range skipped {
		fmt.Fprintf(c.out, "skip  %s\n", line)
	}

	c.printSlowest()

	for _, name := range flaky {
		c.printFlaky(name)
	}

	for _, line := range failures {
		fmt.Fprintf(c.out, "fail  %s\n", line)
	}

	if passed+failed == 0 && len(skipped) > 0 {
		fmt.Fprintf(c.out, "note  all tests were skipped: %s\n", strings.Join(skipReasons(skipped), "; "))
		fmt.Fprintf(c.out, "0 passed, 0 failed, %d skipped\n", len(skipped))

		return true
	}

	fmt.Fprintf(c.out, "%d passed, %d failed\n", passed, failed)

	return failed == 0 && passed > 0
}

// skipReasons returns the distinct reasons why tests were skipped.
func skipReasons(skipped []string) []string {
	var out []string

	for _, line := range skipped {
		_, reason, _ := strings.Cut(line, ": ")
		out = append(out, messagePrefix.ReplaceAllString(reason, ""))
	}

	slices.Sort(out)

	return slices.Compact(out)
}

// printFlaky prints a package that failed in the first attempt and passed in the second.
func (c *runSummary) printFlaky(name string) {
	first, second := c.first.packages[name], c.second.packages[name]

	fmt.Fprintf(c.out, "FLAKY %s failed, and passed in the second attempt: fix it next\n", name)

	for _, failure := range first.failures {
		fmt.Fprintf(c.out, "FLAKY   %s\n", failure)
	}

	fmt.Fprintf(c.out, "  first attempt, in %.1fs, output of the failed tests:\n%s", first.duration, quoteTail(first.kept.String()))
	fmt.Fprintf(c.out, "  second attempt, in %.1fs, output of the same tests:\n%s", second.duration, quoteTail(second.kept.String()))
}

// quoteTail returns the last lines of a text, indented.
func quoteTail(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")

	var out strings.Builder

	if len(lines) > maxQuotedLines {
		fmt.Fprintf(&out, "    (%d lines omitted)\n", len(lines)-maxQuotedLines)
		lines = lines[len(lines)-maxQuotedLines:]
	}

	for _, line := range lines {
		out.WriteString("    " + line + "\n")
	}

	return out.String()
}

// printSlowest prints the slowest packages and tests, and the CPU time of the run.
func (c *runSummary) printSlowest() {
	packages := slices.DeleteFunc(slices.Collect(maps.Keys(c.first.packages)), func(name string) bool {
		return c.first.packages[name].ranNoTests
	})
	if len(packages) <= 1 {
		return
	}

	slices.SortFunc(packages, func(a, b string) int {
		return cmp.Compare(c.first.packages[b].duration, c.first.packages[a].duration)
	})

	fmt.Fprintf(c.out, "slow  %-62s %8s\n", "package", "wall")

	for _, name := range packages[:min(maxSlowest, len(packages))] {
		fmt.Fprintf(c.out, "slow  %-62s %7.1fs%s\n", name, c.first.packages[name].duration, c.formatCPU(name))
	}

	tests := slices.Clone(c.first.tests)
	slices.SortFunc(tests, func(a, b testDuration) int { return cmp.Compare(b.seconds, a.seconds) })
	fmt.Fprintf(c.out, "slow  %-62s %8s\n", "test", "wall")

	for _, test := range tests[:min(maxSlowest, len(tests))] {
		fmt.Fprintf(c.out, "slow  %-62s %7.1fs\n", strings.TrimPrefix(test.name, commonPrefix(packages)), test.seconds)
	}

	cached := 0

	for _, pkg := range c.first.packages {
		if pkg.cached {
			cached++
		}
	}

	fmt.Fprintf(c.out, "took  %s: %.1f CPU minutes, %.1f of them in %d control planes and other servers; "+
		"%d packages are cached\n",
		c.duration.Round(time.Second), c.total.Minutes(), c.servers.Minutes(), c.planes, cached)
}

// formatCPU returns the CPU time of a package, or an empty string if it was not measured.
func (c *runSummary) formatCPU(name string) string {
	for path, cpu := range c.cpu {
		if strings.HasSuffix(name, "/"+path) || path == "." && strings.Count(name, "/") == 2 {
			return fmt.Sprintf(" %7.1fs of CPU", cpu.Seconds())
		}
	}

	return ""
}

// commonPrefix returns the common prefix of all names up to its last slash.
func commonPrefix(names []string) string {
	if len(names) == 0 {
		return ""
	}

	prefix := names[0]
	for _, name := range names {
		for !strings.HasPrefix(name, prefix) {
			prefix = prefix[:len(prefix)-1]
		}
	}

	return prefix[:strings.LastIndexByte(prefix, '/')+1]
}
