// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command testrun runs `go test` on packages, with the servers that they share, and prints
// what a person wants of it: a line for each package as it ends, the output of what failed,
// what was skipped and why, what took longest, and last the counts, "N passed, N failed".
//
//	testrun [-v] [-once] [-usage] [-race FILE] [-changed REVISION] PACKAGE... [-- FLAG...]
//	testrun -fuzz DURATION PACKAGE...
//
// With -changed it runs those of the packages whose tests depend on what differs from the
// revision. With -race the packages that the file names, one folder a line, run with the race
// detector, and no others. With -usage it tells the processor's time of each package. With -fuzz it
// runs every fuzz target of the packages for so long, twelve at a time.
//
// A result that go has kept is taken where nothing has changed that it depends on. Tests that start
// programs (their code or that of this module in them imports os/exec) depend on all of the checkout
// and on Debian's packages (docs/adr/0064). -count=1 behind -- runs all of them.
//
// Flags behind -- are go test's. What fails is run once more at the end. If it
// passes then, the run passes, and its closing lines name the package under FLAKY with what
// it said both times: that is a defect to be fixed next. It exits 1 when something failed
// twice, or did not build, or there was no test. Where every test was skipped it passes, and says
// for which reasons.
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
	// As go test's -exec, see usage.go.
	if len(os.Args) > 2 && os.Args[1] == execCommand {
		os.Exit(execute(os.Args[2], os.Args[3:]))
	}

	var o options

	flag.BoolVar(&o.verbose, "v", false, "print the output of all tests as it comes, of several packages with their names")
	flag.BoolVar(&o.once, "once", false, "do not run again what failed")
	flag.BoolVar(&o.usage, "usage", false, "tell the processor's time of each package")
	flag.StringVar(&o.race, "race", "", "`file` with the folders of packages that run with the race detector")
	flag.StringVar(&o.changed, "changed", "", "only what depends on changes since this `revision`")
	flag.DurationVar(&o.fuzz, "fuzz", 0, "fuzz every target of the packages for this `duration`")
	flag.Parse()

	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)

	good, err := o.run(ctx, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
	}

	cancel()

	if err != nil || !good {
		os.Exit(1)
	}
}

type options struct {
	verbose, once, usage bool
	changed, race        string
	fuzz                 time.Duration
}

// run does what the options say, and says whether all is well.
func (o options) run(ctx context.Context, args []string) (bool, error) {
	packages, flags := args, []string(nil)
	if i := slices.Index(args, "--"); i >= 0 {
		packages, flags = args[:i], args[i+1:]
	}

	dir, err := os.Getwd()
	if err != nil {
		return false, fmt.Errorf("find the packages: %w", err)
	}

	// Programs that live for a minute gain more by memory than by collecting it: a sixth of
	// an API server's time was the collector's.
	if os.Getenv("GOGC") == "" {
		if err := os.Setenv("GOGC", "300"); err != nil {
			return false, fmt.Errorf("set GOGC: %w", err)
		}
	}

	if o.fuzz > 0 {
		return (&fuzzing{out: os.Stdout, dir: dir, each: o.fuzz}).all(ctx, packages)
	}

	if o.changed != "" {
		if packages, err = changed(ctx, dir, o.changed, packages); err != nil {
			return false, err
		}

		fmt.Printf("changed: %d packages have tests that depend on it\n", len(packages)) //nolint:forbidigo // this is its output
	}

	raced, err := readRaced(o.race)
	if err != nil {
		return false, err
	}

	return (&run{
		out: os.Stdout, verbose: o.verbose, dir: dir, flags: flags, again: !o.once, usage: o.usage, raced: raced,
	}).all(ctx, packages)
}
