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

// event is one line of test2json (go doc test2json) or of a build.
type event struct {
	Action      string
	Package     string
	Test        string
	Output      string
	Elapsed     float64
	ImportPath  string
	FailedBuild string
}

// result is what came of one package.
type result struct {
	// output of the package itself and of each test that has not ended.
	output map[string]*strings.Builder
	// kept is what tests that failed said, and those that are looked at once more.
	kept              strings.Builder
	passed, failed    int
	skipped, failures []string
	// passedIn counts what passed by the function that it is a part of; again are the functions
	// that failed, nil where the package came to a bad end by something else.
	passedIn               map[string]int
	again                  []string
	took                   float64
	ended, bad, notTesting bool
	// orderly: all of its functions have ended, however.
	orderly bool
	// held: go had kept the result, and nothing has changed that it depends on.
	held bool
}

// timed is how long a test took, with its subtests and without what it waited for others
// that ran in parallel.
type timed struct {
	name    string
	seconds float64
}

type report struct {
	out io.Writer
	// verbose prints output as it comes, named says of which package.
	verbose, named bool
	packages       map[string]*result
	tests          []timed
	// failedTests by package and name; keepPassed are those of the run before this one,
	// whose output is kept when they pass.
	failedTests, keepPassed map[string]bool
}

func newReport(out io.Writer) *report {
	return &report{out: out, packages: map[string]*result{}, failedTests: map[string]bool{}}
}

// read takes all events. Lines that are none are printed as they are.
func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)

	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			r.line(line)
		}

		if errors.Is(err, io.EOF) {
			return nil
		}

		if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
	}
}

func (r *report) line(line string) {
	var e event
	if err := json.Unmarshal([]byte(line), &e); err != nil || e.Action == "" {
		fmt.Fprint(r.out, line)

		return
	}

	r.event(e)
}

func (r *report) event(e event) {
	switch {
	case e.Action == "build-output":
		fmt.Fprint(r.out, e.Output)
	case e.Action == "output":
		r.keep(e)
	case e.Test != "":
		r.test(e)
	case e.Action == "pass" || e.Action == "fail" || e.Action == "skip":
		r.pkg(e)
	}
}

// repeat prints output that was kept, unless it was printed when it came.
func (r *report) repeat(output string) {
	if !r.verbose {
		fmt.Fprint(r.out, output)
	}
}

func (r *report) result(name string) *result {
	got, ok := r.packages[name]
	if !ok {
		got = &result{output: map[string]*strings.Builder{}, passedIn: map[string]int{}}
		r.packages[name] = got
	}

	return got
}

func (r *report) keep(e event) {
	// Package testing says so when it is through; who panics or exits does not.
	if e.Test == "" && strings.TrimSpace(e.Output) == "FAIL" {
		r.result(e.Package).orderly = true
	}

	if e.Test == "" && strings.HasSuffix(strings.TrimSpace(e.Output), "(cached)") {
		r.result(e.Package).held = true
	}

	if r.verbose {
		if r.named {
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

// take returns the output that was kept of a test, and drops it.
func (r *report) take(pkg, test string) string {
	output := r.result(pkg).output

	text, ok := output[test]
	if !ok {
		return ""
	}

	delete(output, test)

	return text.String()
}

func (r *report) test(e event) {
	if e.Action != "pass" && e.Action != "fail" && e.Action != "skip" {
		return
	}

	pkg, name := r.result(e.Package), e.Package+" "+e.Test
	output := r.take(e.Package, e.Test)
	function, _, part := strings.Cut(e.Test, "/")

	// Subtests are in the time of their test.
	if !part {
		r.tests = append(r.tests, timed{name: name, seconds: e.Elapsed})
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

		if !part {
			pkg.again = append(pkg.again, function)
		}

		pkg.kept.WriteString(output)
		r.repeat(output)

		pkg.failures = append(pkg.failures, name+": "+end(output))
	case "skip":
		pkg.skipped = append(pkg.skipped, name+": "+why(output))
	}
}

// said is what a test wrote, without the marks of its runner: one line at least.
func said(output string) []string {
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

// why finds the reason in the output of a test that was skipped.
func why(output string) string { return said(output)[0] }

// endLines and endLength bound what is repeated of a failed test's output: enough
// to know what it was where only the end of a log is kept.
const (
	endLines  = 5
	endLength = 180
)

// remark is how package testing begins what a test says by Error, Log and the like, which
// it does not tell apart.
var remark = regexp.MustCompile(`^\S+\.go:\d+: `)

// end is what a failed test remarked, its first and its last remarks if there are many, or
// the last that it said if that was nothing, in one line.
func end(output string) string {
	lines := said(output)

	remarks := slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return !remark.MatchString(line) })
	if len(remarks) > endLines {
		remarks = append(remarks[:1], remarks[len(remarks)-endLines+1:]...)
	}

	// What follows the only remark may be why.
	if len(remarks) <= 1 {
		first := max(0, slices.IndexFunc(lines, remark.MatchString))
		remarks = append(remarks, lines[max(first+len(remarks), len(lines)-endLines+len(remarks)):]...)
	}

	for i, line := range remarks {
		remarks[i] = line[:min(len(line), endLength)]
	}

	return strings.Join(remarks, " | ")
}

func (r *report) pkg(e event) {
	pkg := r.result(e.Package)
	pkg.ended, pkg.took = true, e.Elapsed

	switch e.Action {
	case "pass":
		took := fmt.Sprintf("%7.1fs", e.Elapsed)
		if pkg.held {
			took = "as before"
		}

		fmt.Fprintf(r.out, "ok    %-70s %s\n", e.Package, took)
	case "skip":
		pkg.notTesting = true
		fmt.Fprintf(r.out, "none  %s\n", e.Package)
	case "fail":
		pkg.bad, pkg.notTesting = true, e.FailedBuild != ""

		// Tests that were running when the package came to a bad end have no result of
		// their own: what they wrote is all there is.
		var output strings.Builder
		for test := range pkg.output {
			output.WriteString(r.take(e.Package, test))
		}

		pkg.kept.WriteString(output.String())
		r.repeat(output.String())

		if !pkg.orderly {
			pkg.again = nil
		}

		if pkg.failed == 0 {
			pkg.failed++
			pkg.failures = append(pkg.failures, e.Package+": "+end(output.String()))
		}

		fmt.Fprintf(r.out, "FAIL  %-70s %7.1fs\n", e.Package, e.Elapsed)
	}

	pkg.output = map[string]*strings.Builder{}
}

// end notes the packages that never ended: they have failed.
func (r *report) end() {
	for _, name := range slices.Sorted(maps.Keys(r.packages)) {
		pkg := r.packages[name]
		if pkg.ended {
			continue
		}

		pkg.bad, pkg.again = true, nil
		pkg.failed++
		pkg.failures = append(pkg.failures, name+": it never ended")

		fmt.Fprintf(r.out, "FAIL  %s: it never ended\n", name)
	}
}

// failedPackages are those whose tests failed; what does not build would not do so again.
func (r *report) failedPackages() []string {
	var out []string

	for _, name := range slices.Sorted(maps.Keys(r.packages)) {
		if pkg := r.packages[name]; pkg.bad && !pkg.notTesting {
			out = append(out, name)
		}
	}

	return out
}

// functions is the flag that has go test run what failed in packages, and nothing else. Empty: one of
// them came to a bad end by something else, so that all of it is run.
func (r *report) functions(packages []string) []string {
	var out []string

	for _, name := range packages {
		again := r.packages[name].again
		if len(again) == 0 {
			return nil
		}

		out = append(out, again...)
	}

	slices.Sort(out)

	return []string{"-run=^(" + strings.Join(slices.Compact(out), "|") + ")$"}
}

// with is what came of a package when some of its functions were run once more.
func (p *result) with(second *result) *result {
	out := *second

	if len(p.again) > 0 {
		out.passed = 0
		for function, passed := range p.passedIn {
			if _, ran := second.passedIn[function]; !ran && !slices.Contains(p.again, function) {
				out.passed += passed
			}
		}

		out.passed += second.passed

		out.skipped = slices.Compact(slices.Sorted(slices.Values(slices.Concat(p.skipped, second.skipped))))
	}

	return &out
}
