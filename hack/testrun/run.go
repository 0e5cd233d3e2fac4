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
	// raced are the packages that run with the race detector (readRaced).
	raced map[string][]string
	// usage has what each package takes of the processor told; no result holds then.
	usage bool
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

	parts, err := r.parts(ctx, packages)
	if err != nil {
		return false, err
	}

	first := newReport(r.out)
	first.verbose, first.named = r.verbose, len(packages) > 1

	if err := r.goTests(ctx, parts, nil, environment, first); err != nil {
		return false, err
	}

	var second *report

	if failed := first.failedPackages(); r.again && len(failed) > 0 && len(failed) <= fewFail && ctx.Err() == nil {
		only := first.functions(failed)
		fmt.Fprintf(r.out, "again %d packages that failed: %s\n", len(failed), cmp.Or(strings.Join(only, " "), "all of them"))

		second = newReport(r.out)
		second.verbose, second.named, second.keepPassed = r.verbose, len(failed) > 1, first.failedTests

		if err := r.goTests(ctx, among(parts, failed), only, environment, second); err != nil {
			return false, err
		}
	}

	whole := &closing{
		out: r.out, first: first, second: second, total: r.cpu + account.ofServers(), servers: account.ofServers(),
		took: time.Since(begun), planes: shared.started(),
	}
	if r.usage {
		whole.cpu = account.perPackage()
	}

	return whole.print(), nil
}

// parts are the packages by how they are run.
func (r *run) parts(ctx context.Context, packages []string) ([]group, error) {
	module, err := moduleOf(ctx, r.dir)
	if err != nil {
		return nil, err
	}

	programs, err := testPrograms(ctx, r.dir, packages)
	if err != nil {
		return nil, err
	}

	parts := split(module, programs, r.raced)
	for i := range parts {
		parts[i] = parts[i].inOrder(module, packages)
	}

	return parts, nil
}

// goTests runs go test on each part, one after the other: side by side they are more than tests have patience for.
func (r *run) goTests(ctx context.Context, parts []group, only, environment []string, report *report) error {
	defer report.end()

	checkout := checkoutDigest(ctx, r.dir)

	for _, part := range parts {
		if err := r.goTest(ctx, part, append(part.flags(r.flags, checkout), only...), environment, report); err != nil {
			return err
		}
	}

	return nil
}

// goTest runs go test on packages, and has the report read what it tells.
func (r *run) goTest(ctx context.Context, part group, flags, environment []string, report *report) error {
	args := []string{"test", "-json"}

	if r.usage {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("run tests: %w", err)
		}

		args = append(args, "-exec", "'"+self+"' "+execCommand)
	}

	cmd := exec.CommandContext(ctx, "go", slices.Concat(args, flags, part.packages)...)
	cmd.Dir, cmd.Env, cmd.Stderr = r.dir, environment, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = afterInterrupt

	if part.race { // it is made of C
		cmd.Env = append(slices.Clone(environment), "CGO_ENABLED=1")
	}

	events, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("run tests: %w", err)
	}

	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run tests: %w", err)
	}

	if err := report.read(events); err != nil {
		return err
	}

	err = cmd.Wait()

	r.cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()

	// That tests failed is told by the events.
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("run tests: %w", err)
	}

	return ctx.Err()
}
