// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command testrun runs `go test` on packages and starts the servers that their tests share. It prints a line for
// each package, the output of failed tests, the skipped tests with reasons, the slowest tests, and in its last
// line the counts, "N passed, N failed".
//
//	testrun [-v] [-once] [-usage] [-race FILE] [-changed REVISION] PACKAGE... [-- FLAG...]
//	testrun -fuzz DURATION PACKAGE...
//
// With -changed, it runs only packages whose tests depend on files that differ from the revision. With -race,
// only the packages in the file run with the race detector. With -usage, it prints the CPU time of each package.
// With -fuzz, it runs each fuzz target of the packages for the given time, twelve targets at a time.
//
// testrun uses cached results of go test if nothing on which they depend has changed. Tests that start programs,
// that is tests with a package of this module that imports os/exec, depend on all files of the checkout and on
// the Debian packages (docs/adr/0064). To run all tests, pass -count=1 after --.
//
// Flags after -- are passed to go test. Failed tests run a second time at the end. If they pass, the run passes,
// and the summary lists their package under FLAKY with the output of both attempts. Fix a flaky test next. The
// exit code is 1 if a test failed twice, if a package does not build, or if there are no tests. If all tests were
// skipped, the run passes and the summary lists the reasons.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

func main() {
	// go test runs this program through its flag -exec, see usage.go.
	if len(os.Args) > 2 && os.Args[1] == execCommand {
		os.Exit(execute(os.Args[2], os.Args[3:]))
	}

	var o options

	flag.BoolVar(&o.verbose, "v", false, "print the output of all tests immediately; with several packages, also print their names")
	flag.BoolVar(&o.once, "once", false, "do not run failed tests a second time")
	flag.BoolVar(&o.usage, "usage", false, "print the CPU time of each package")
	flag.StringVar(&o.race, "race", "", "`file` with the folders of packages that run with the race detector")
	flag.StringVar(&o.changed, "changed", "", "run only packages that depend on changes since this `revision`")
	flag.DurationVar(&o.fuzz, "fuzz", 0, "run each fuzz target of the packages for this `duration`")
	flag.Parse()

	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)

	passed, err := o.run(ctx, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
	}

	cancel()

	if err != nil || !passed {
		os.Exit(1)
	}
}

type options struct {
	verbose, once, usage bool
	changed, race        string
	fuzz                 time.Duration
}

// run runs the tests or the fuzz targets, and returns true if they passed.
func (o options) run(ctx context.Context, args []string) (hasPassed bool, err error) {
	packages, flags := args, []string(nil)
	if i := slices.Index(args, "--"); i >= 0 {
		packages, flags = args[:i], args[i+1:]
	}

	dir, err := os.Getwd()
	if err != nil {
		return false, fmt.Errorf("find the packages: %w", err)
	}

	// Collect garbage less often, because test programs and servers run only for minutes. With the default, an
	// API server spent one sixth of its CPU time on garbage collection.
	if os.Getenv("GOGC") == "" {
		if err := os.Setenv("GOGC", "300"); err != nil {
			return false, fmt.Errorf("set GOGC: %w", err)
		}
	}

	if o.fuzz > 0 {
		return (&fuzzer{out: os.Stdout, dir: dir, fuzzTime: o.fuzz}).runAll(ctx, packages)
	}

	racePackages, err := readRacePackages(o.race)
	if err != nil {
		return false, err
	}

	return (&run{
		out: os.Stdout, verbose: o.verbose, dir: dir, flags: flags, retry: !o.once, usage: o.usage, racePackages: racePackages,
		changed: o.changed,
	}).runAll(ctx, packages)
}
