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
	// slowest is how many packages and tests are named.
	slowest = 10
	// quoted is how many lines of a flaky package's output are repeated for each run.
	quoted = 60
)

// closing are the lines that a run ends with.
type closing struct {
	out io.Writer
	// second is the report of what was run once more, nil if nothing was.
	first, second *report
	// cpu is what packages took, by their path in the module; total is what all took, with
	// building and linking.
	cpu   map[string]time.Duration
	total time.Duration
	took  time.Duration
	// servers is what the shared servers took of the total.
	servers time.Duration
	planes  int
}

// print says whether all is well: there were tests, and nothing failed twice.
func (c *closing) print() bool {
	var (
		skipped, failures, flaky []string
		passed, failed           int
	)

	for _, name := range slices.Sorted(maps.Keys(c.first.packages)) {
		pkg := c.first.packages[name]

		if c.second != nil && c.second.packages[name] != nil {
			pkg = pkg.with(c.second.packages[name])
			if !pkg.bad {
				flaky = append(flaky, name)
			}
		}

		passed, failed = passed+pkg.passed, failed+pkg.failed
		skipped, failures = append(skipped, pkg.skipped...), append(failures, pkg.failures...)
	}

	for _, line := range skipped {
		fmt.Fprintf(c.out, "skip  %s\n", line)
	}

	c.slowest()

	for _, name := range flaky {
		c.flaky(name)
	}

	for _, line := range failures {
		fmt.Fprintf(c.out, "fail  %s\n", line)
	}

	if passed+failed == 0 && len(skipped) > 0 {
		fmt.Fprintf(c.out, "note  nothing was looked at: %s\n", strings.Join(reasons(skipped), "; "))
		fmt.Fprintf(c.out, "0 passed, 0 failed, %d skipped\n", len(skipped))

		return true
	}

	fmt.Fprintf(c.out, "%d passed, %d failed\n", passed, failed)

	return failed == 0 && passed > 0
}

// reasons are those for which tests were skipped, each once.
func reasons(skipped []string) []string {
	var out []string

	for _, line := range skipped {
		_, reason, _ := strings.Cut(line, ": ")
		out = append(out, remark.ReplaceAllString(reason, ""))
	}

	slices.Sort(out)

	return slices.Compact(out)
}

// flaky tells of a package that failed and then passed.
func (c *closing) flaky(name string) {
	first, second := c.first.packages[name], c.second.packages[name]

	fmt.Fprintf(c.out, "FLAKY %s failed, and passed when it was run once more: fix it next\n", name)

	for _, failure := range first.failures {
		fmt.Fprintf(c.out, "FLAKY   %s\n", failure)
	}

	fmt.Fprintf(c.out, "  the first time, in %.1fs, what failed said:\n%s", first.took, quote(first.kept.String()))
	fmt.Fprintf(c.out, "  the second time, in %.1fs, the same tests said:\n%s", second.took, quote(second.kept.String()))
}

// quote gives the last lines of a text.
func quote(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")

	var out strings.Builder

	if len(lines) > quoted {
		fmt.Fprintf(&out, "    (%d lines before these)\n", len(lines)-quoted)
		lines = lines[len(lines)-quoted:]
	}

	for _, line := range lines {
		out.WriteString("    " + line + "\n")
	}

	return out.String()
}

// slowest names what took longest.
func (c *closing) slowest() {
	packages := slices.DeleteFunc(slices.Collect(maps.Keys(c.first.packages)), func(name string) bool {
		return c.first.packages[name].notTesting
	})
	if len(packages) <= 1 {
		return
	}

	slices.SortFunc(packages, func(a, b string) int {
		return cmp.Compare(c.first.packages[b].took, c.first.packages[a].took)
	})

	fmt.Fprintf(c.out, "slow  %-62s %8s\n", "package", "wall")

	for _, name := range packages[:min(slowest, len(packages))] {
		fmt.Fprintf(c.out, "slow  %-62s %7.1fs%s\n", name, c.first.packages[name].took, c.cpuOf(name))
	}

	tests := slices.Clone(c.first.tests)
	slices.SortFunc(tests, func(a, b timed) int { return cmp.Compare(b.seconds, a.seconds) })
	fmt.Fprintf(c.out, "slow  %-62s %8s\n", "test", "wall")

	for _, test := range tests[:min(slowest, len(tests))] {
		fmt.Fprintf(c.out, "slow  %-62s %7.1fs\n", strings.TrimPrefix(test.name, common(packages)), test.seconds)
	}

	held := 0

	for _, pkg := range c.first.packages {
		if pkg.held {
			held++
		}
	}

	fmt.Fprintf(c.out, "took  %s: %.1f CPU minutes, %.1f of them in %d control planes and other servers; "+
		"%d packages are as they were before\n",
		c.took.Round(time.Second), c.total.Minutes(), c.servers.Minutes(), c.planes, held)
}

// cpuOf tells the processor's time of a package, where it was measured.
func (c *closing) cpuOf(name string) string {
	for path, cpu := range c.cpu {
		if strings.HasSuffix(name, "/"+path) || path == "." && strings.Count(name, "/") == 2 {
			return fmt.Sprintf(" %7.1fs of CPU", cpu.Seconds())
		}
	}

	return ""
}

// common is what all names begin with, to the last slash.
func common(names []string) string {
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
