// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// event is one line of the output of go test -json: an event of test2json (go doc test2json) or of a build.
type event struct {
	Action      string
	Package     string
	Test        string
	Output      string
	Elapsed     float64
	ImportPath  string
	FailedBuild string
}

// result is the result of one package.
type result struct {
	// output has the output of the package itself and of each unfinished test.
	output map[string]*strings.Builder
	// kept is the output of failed tests, and of passed tests that failed in the first attempt.
	kept              strings.Builder
	passed, failed    int
	skipped, failures []string
	// passedIn is the number of passed tests and subtests by test function. failedFunctions are the test
	// functions to run again. It is nil if the package failed for another reason.
	passedIn            map[string]int
	failedFunctions     []string
	duration            float64
	finished, hasFailed bool
	// ranNoTests is true if the package has no tests or does not build.
	ranNoTests bool
	// completed is true if all test functions of a failed package have finished, so that the package did not
	// panic or exit.
	completed bool
	// cached is true if the result comes from the cache of go test.
	cached bool
}

// testDuration is the duration of a test with its subtests, without the time that the test waited for parallel
// tests.
type testDuration struct {
	name    string
	seconds float64
}

type report struct {
	out io.Writer
	// interrupted is closed when the run is interrupted. Its servers then stop, so that the results of tests that
	// end later say nothing.
	interrupted <-chan struct{}
	// verbose prints output immediately. showPackage adds the name of the package to each line.
	verbose, showPackage bool
	packages             map[string]*result
	tests                []testDuration
	// failedTests has the failed tests by package and name. keepPassed has the failed tests of the first
	// attempt, whose output is kept if they pass.
	failedTests, keepPassed map[string]bool
}

func newReport(out io.Writer) *report {
	return &report{out: out, packages: map[string]*result{}, failedTests: map[string]bool{}}
}

// read reads all events. It prints lines that are not events unchanged.
func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)

	for {
		line, err := lines.ReadString('\n')
		if line != "" && !r.isInterrupted() {
			r.handleLine(line)
		}

		if errors.Is(err, io.EOF) {
			return nil
		}

		if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
	}
}

func (r *report) isInterrupted() bool {
	select {
	case <-r.interrupted:
		return true
	default:
		return false
	}
}

func (r *report) handleLine(line string) {
	var e event
	if err := json.Unmarshal([]byte(line), &e); err != nil || e.Action == "" {
		fmt.Fprint(r.out, line)

		return
	}

	r.handleEvent(e)
}

func (r *report) handleEvent(e event) {
	switch {
	case e.Action == "build-output":
		fmt.Fprint(r.out, e.Output)
	case e.Action == "output":
		r.handleOutput(e)
	case e.Test != "":
		r.handleTest(e)
	case e.Action == "pass" || e.Action == "fail" || e.Action == "skip":
		r.handlePackage(e)
	}
}

// printKept prints kept output, unless verbose has already printed it.
func (r *report) printKept(output string) {
	if !r.verbose {
		fmt.Fprint(r.out, output)
	}
}

func (r *report) result(name string) *result {
	pkg, ok := r.packages[name]
	if !ok {
		pkg = &result{output: map[string]*strings.Builder{}, passedIn: map[string]int{}}
		r.packages[name] = pkg
	}

	return pkg
}

func (r *report) handleOutput(e event) {
	// Package testing prints FAIL after all tests have finished, but not after a panic or an exit.
	if e.Test == "" && strings.TrimSpace(e.Output) == "FAIL" {
		r.result(e.Package).completed = true
	}

	if e.Test == "" && strings.HasSuffix(strings.TrimSpace(e.Output), "(cached)") {
		r.result(e.Package).cached = true
	}

	if r.verbose {
		if r.showPackage {
			fmt.Fprintf(r.out, "%-8s  ", path.Base(e.Package))
		}

		fmt.Fprint(r.out, e.Output)
	}

	output := r.result(e.Package).output

	text, ok := output[e.Test]
	if !ok {
		text = &strings.Builder{}
		output[e.Test] = text
	}

	text.WriteString(e.Output)
}

// takeOutput returns the collected output of a test and removes it.
func (r *report) takeOutput(pkg, test string) string {
	output := r.result(pkg).output

	text, ok := output[test]
	if !ok {
		return ""
	}

	delete(output, test)

	return text.String()
}

func (r *report) handleTest(e event) {
	if e.Action != "pass" && e.Action != "fail" && e.Action != "skip" {
		return
	}

	pkg, name := r.result(e.Package), e.Package+" "+e.Test
	output := r.takeOutput(e.Package, e.Test)
	function, _, isSubtest := strings.Cut(e.Test, "/")

	// The duration of a test includes its subtests.
	if !isSubtest {
		r.tests = append(r.tests, testDuration{name: name, seconds: e.Elapsed})
	}

	switch e.Action {
	case "pass":
		pkg.passed++
		pkg.passedIn[function]++

		if r.keepPassed[name] {
			pkg.kept.WriteString(output)
		}
	case "fail":
		pkg.failed++
		r.failedTests[name] = true

		if !isSubtest {
			pkg.failedFunctions = append(pkg.failedFunctions, function)
		}

		pkg.kept.WriteString(output)
		r.printKept(output)

		pkg.failures = append(pkg.failures, name+": "+failureMessage(output))
	case "skip":
		pkg.skipped = append(pkg.skipped, name+": "+skipReason(output))
	}
}

// outputLines returns the output lines of a test, without the lines of the test runner. It returns at least one
// line.
func outputLines(output string) []string {
	var lines []string

	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			lines = append(lines, line)
		}
	}

	if len(lines) == 0 {
		return []string{"no reason given"}
	}

	return lines
}

// skipReason returns the reason in the output of a skipped test.
func skipReason(output string) string { return outputLines(output)[0] }

// maxFailureLines and maxFailureLineLength limit the output of a failed test in the summary. It is long enough to
// understand the failure if only the end of a log is available.
const (
	maxFailureLines      = 5
	maxFailureLineLength = 180
)

// messagePrefix matches the prefix that package testing adds to messages of Error, Log and similar methods. The
// prefix does not show which method was called.
var messagePrefix = regexp.MustCompile(`^\S+\.go:\d+: `)

// failureMessage returns the messages of a failed test in one line. If there are many messages, it returns the
// first and the last ones. If there is at most one, it adds the last lines of the output.
func failureMessage(output string) string {
	lines := outputLines(output)

	messages := slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return !messagePrefix.MatchString(line) })
	if len(messages) > maxFailureLines {
		messages = append(messages[:1], messages[len(messages)-maxFailureLines+1:]...)
	}

	// The lines after a single message may contain the reason of the failure.
	if len(messages) <= 1 {
		first := max(0, slices.IndexFunc(lines, messagePrefix.MatchString))
		messages = append(messages, lines[max(first+len(messages), len(lines)-maxFailureLines+len(messages)):]...)
	}

	for i, line := range messages {
		messages[i] = line[:min(len(line), maxFailureLineLength)]
	}

	return strings.Join(messages, " | ")
}

func (r *report) handlePackage(e event) {
	pkg := r.result(e.Package)
	pkg.finished, pkg.duration = true, e.Elapsed

	switch e.Action {
	case "pass":
		duration := fmt.Sprintf("%7.1fs", e.Elapsed)
		if pkg.cached {
			duration = "cached"
		}

		fmt.Fprintf(r.out, "ok    %-70s %s\n", e.Package, duration)
	case "skip":
		pkg.ranNoTests = true
		fmt.Fprintf(r.out, "none  %s\n", e.Package)
	case "fail":
		pkg.hasFailed, pkg.ranNoTests = true, e.FailedBuild != ""

		// Tests that were running when the package failed have no result. Only their output is available.
		var output strings.Builder
		for test := range pkg.output {
			output.WriteString(r.takeOutput(e.Package, test))
		}

		pkg.kept.WriteString(output.String())
		r.printKept(output.String())

		if !pkg.completed {
			pkg.failedFunctions = nil
		}

		if pkg.failed == 0 {
			pkg.failed++
			pkg.failures = append(pkg.failures, e.Package+": "+failureMessage(output.String()))
		}

		fmt.Fprintf(r.out, "FAIL  %-70s %7.1fs\n", e.Package, e.Elapsed)
	}

	pkg.output = map[string]*strings.Builder{}
}

// finish marks the packages that did not finish as failed, unless the run was interrupted.
func (r *report) finish() {
	for _, name := range slices.Sorted(maps.Keys(r.packages)) {
		pkg := r.packages[name]
		if pkg.finished {
			continue
		}

		if r.isInterrupted() {
			fmt.Fprintf(r.out, "stop  %s: the run was interrupted\n", name)

			continue
		}

		pkg.hasFailed, pkg.failedFunctions = true, nil
		pkg.failed++
		pkg.failures = append(pkg.failures, name+": it did not finish")

		fmt.Fprintf(r.out, "FAIL  %s: it did not finish\n", name)
	}
}

// failedPackages returns the packages whose tests failed. It leaves out the packages that do not build, because
// a retry would not help.
func (r *report) failedPackages() []string {
	var out []string

	for _, name := range slices.Sorted(maps.Keys(r.packages)) {
		if pkg := r.packages[name]; pkg.hasFailed && !pkg.ranNoTests {
			out = append(out, name)
		}
	}

	return out
}

// runFlag returns the flag -run of go test for the failed test functions of the packages. It returns nil if one of
// the packages failed for another reason, so that all its tests must run again.
func (r *report) runFlag(packages []string) []string {
	var out []string

	for _, name := range packages {
		again := r.packages[name].failedFunctions
		if len(again) == 0 {
			return nil
		}

		out = append(out, again...)
	}

	slices.Sort(out)

	return []string{"-run=^(" + strings.Join(slices.Compact(out), "|") + ")$"}
}

// merge returns the result of a package after a second attempt, which may have run only some of its functions.
func (p *result) merge(second *result) *result {
	out := *second

	if len(p.failedFunctions) > 0 {
		out.passed = 0
		for function, passed := range p.passedIn {
			if _, isInSecond := second.passedIn[function]; !isInSecond && !slices.Contains(p.failedFunctions, function) {
				out.passed += passed
			}
		}

		out.passed += second.passed

		out.skipped = slices.Compact(slices.Sorted(slices.Values(slices.Concat(p.skipped, second.skipped))))
	}

	return &out
}
