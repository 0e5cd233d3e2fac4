// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/test/lease"
)

const (
	// fewFail is how many packages may fail and be run again: where more do, it is no flake.
	fewFail = 8
	// afterInterrupt is how long go test may take to end its programs.
	afterInterrupt = 20 * time.Second
)

// run is one call of this program.
type run struct {
	out     io.Writer
	verbose bool
	// dir is the module's folder, with an absolute path.
	dir string
	// flags are go test's.
	flags []string
	// again runs tests that failed once more, and packages that came to a bad end by something else.
	again bool
	// cpu is what go test and all under it has taken; the servers are not under it.
	cpu time.Duration
}

var errNoPackages = errors.New("no packages: name some, such as ./..., as arguments")

// all runs the packages, and says whether all is well.
func (r *run) all(ctx context.Context, packages []string) (bool, error) {
	if len(packages) == 0 {
		return false, errNoPackages
	}

	dir, err := os.MkdirTemp("", "hf-test-")
	if err != nil {
		return false, fmt.Errorf("run tests: %w", err)
	}

	// The user of PostgreSQL passes through.
	if err := os.Chmod(dir, 0o711); err != nil {
		return false, fmt.Errorf("run tests: %w", err)
	}

	account := &account{file: filepath.Join(dir, "usage"), root: r.dir, billed: map[string]time.Duration{}}

	life, end := context.WithCancel(ctx)
	shared := newServers(life, dir, r.out, account.bill)

	defer shared.stop()

	socket, released, err := lease.Serve(life, dir, shared.kinds())
	if err != nil {
		end()

		return false, err
	}

	defer func() {
		end()
		released()
	}()

	environment := append(os.Environ(), lease.EnvSocket+"="+socket, envUsage+"="+account.file)
	begun := time.Now()

	first, err := r.goTest(ctx, packages, nil, environment, nil)
	if err != nil {
		return false, err
	}

	var second *report

	if failed := first.failedPackages(); r.again && len(failed) > 0 && len(failed) <= fewFail && ctx.Err() == nil {
		only := first.functions(failed)
		fmt.Fprintf(r.out, "again %d packages that failed: %s\n", len(failed), cmp.Or(strings.Join(only, " "), "all of them"))

		if second, err = r.goTest(ctx, failed, only, environment, first); err != nil {
			return false, err
		}
	}

	whole := &closing{
		out: r.out, first: first, second: second,
		cpu: account.perPackage(), total: r.cpu + account.ofServers(), took: time.Since(begun), planes: shared.started(),
	}

	return whole.print(), nil
}

// goTest runs go test on the packages and reads what it tells. only has a flag for it; before is the
// report of the run before this one.
func (r *run) goTest(ctx context.Context, packages, only, environment []string, before *report) (*report, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("run tests: %w", err)
	}

	args := slices.Concat([]string{"test", "-json", "-exec", "'" + self + "' " + execCommand}, r.flags, only, packages)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env, cmd.Stderr = r.dir, environment, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = afterInterrupt

	events, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("run tests: %w", err)
	}

	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("run tests: %w", err)
	}

	report := newReport(r.out)
	report.verbose, report.named = r.verbose, len(packages) > 1

	if before != nil {
		report.keepPassed = before.failedTests
	}

	if err := report.read(events); err != nil {
		return nil, err
	}

	err = cmd.Wait()
	r.cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()

	// That tests failed is told by the events.
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return nil, fmt.Errorf("run tests: %w", err)
	}

	report.end()

	return report, ctx.Err()
}
