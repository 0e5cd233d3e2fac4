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
	// maxRetriedPackages is the maximum number of failed packages that run a second time. If more packages
	// fail, the cause is not a flaky test.
	maxRetriedPackages = 8
	// interruptGracePeriod is the time that go test has to stop its programs after an interrupt.
	interruptGracePeriod = 20 * time.Second
)

// run is one run of the tests.
type run struct {
	out     io.Writer
	verbose bool
	// dir is the absolute path of the module's folder.
	dir string
	// flags are the flags of go test.
	flags []string
	// changed is the revision since which files must have changed on which a package depends. If it is empty, all
	// packages run.
	changed string
	// racePackages are the packages that run with the race detector (readRacePackages).
	racePackages map[string][]string
	// usage prints the CPU time of each package. It disables cached results.
	usage bool
	// retry runs failed tests a second time, and all tests of a package that failed for another reason.
	retry bool
	// cpu is the CPU time of go test and its child processes, without the shared servers.
	cpu time.Duration
}

var errNoPackages = errors.New("no packages: pass some as arguments, such as ./... for all")

// runAll runs the tests of the packages and returns true if they passed.
func (r *run) runAll(ctx context.Context, packages []string) (hasPassed bool, err error) {
	if len(packages) == 0 {
		return false, errNoPackages
	}

	dir, err := os.MkdirTemp("", "hf-test-")
	if err != nil {
		return false, fmt.Errorf("run tests: %w", err)
	}

	// The PostgreSQL server runs as another user and needs access to its subfolder.
	if err := os.Chmod(dir, 0o711); err != nil {
		return false, fmt.Errorf("run tests: %w", err)
	}

	account := &account{file: filepath.Join(dir, "usage"), root: r.dir, billed: map[string]time.Duration{}}

	serverCtx, cancel := context.WithCancel(ctx)
	shared := newServers(serverCtx, dir, r.dir, r.out, account.bill)

	defer shared.stop()

	socket, waitReleased, err := lease.Serve(serverCtx, dir, shared.providers())
	if err != nil {
		cancel()

		return false, err
	}

	defer func() {
		cancel()
		waitReleased()
	}()

	environment := append(os.Environ(), lease.EnvSocket+"="+socket, envUsage+"="+account.file)
	start := time.Now()

	groups, err := r.loadGroups(ctx, packages)
	if err != nil {
		return false, err
	}

	first := newReport(r.out)
	first.interrupted = ctx.Done()
	first.verbose, first.showPackage = r.verbose, len(packages) > 1

	if err := r.testGroups(ctx, groups, nil, environment, first); err != nil {
		return false, err
	}

	var second *report

	if failed := first.failedPackages(); r.retry && len(failed) > 0 && len(failed) <= maxRetriedPackages && ctx.Err() == nil {
		runFlags := first.runFlag(failed)
		fmt.Fprintf(r.out, "again %d packages that failed: %s\n", len(failed), cmp.Or(strings.Join(runFlags, " "), "all tests"))

		second = newReport(r.out)
		second.interrupted = ctx.Done()
		second.verbose, second.showPackage, second.keepPassed = r.verbose, len(failed) > 1, first.failedTests

		if err := r.testGroups(ctx, filterGroups(groups, failed), runFlags, environment, second); err != nil {
			return false, err
		}
	}

	summary := &runSummary{
		out: r.out, first: first, second: second, total: r.cpu + account.serverTotal(), servers: account.serverTotal(),
		duration: time.Since(start), planes: shared.planeCount(),
	}
	if r.usage {
		summary.cpu = account.perPackage()
	}

	return summary.print(), nil
}

// loadGroups finds the test programs of the packages, and groups the packages with groupPackages. Within a
// group, the packages have the order of the arguments.
func (r *run) loadGroups(ctx context.Context, packages []string) ([]group, error) {
	module, err := moduleOf(ctx, r.dir)
	if err != nil {
		return nil, err
	}

	programs, err := testPrograms(ctx, r.dir, packages)
	if err != nil {
		return nil, err
	}

	if r.changed != "" {
		if programs, err = changedPrograms(ctx, r.dir, r.changed, module, programs); err != nil {
			return nil, err
		}

		fmt.Fprintf(r.out, "changed: %d packages have tests that depend on the changes\n", len(programs))
	}

	groups := groupPackages(module, programs, r.racePackages)
	for i := range groups {
		groups[i] = groups[i].sortLike(packages, module)
	}

	return groups, nil
}

// testGroups runs go test for each group, one group after the other. In parallel, tests would exceed their
// timeouts.
func (r *run) testGroups(ctx context.Context, groups []group, runFlags, environment []string, report *report) error {
	defer report.finish()

	checkout := checkoutDigest(ctx, r.dir)

	for _, g := range groups {
		if err := r.testGroup(ctx, g, append(g.testFlags(r.flags, checkout), runFlags...), environment, report); err != nil {
			return err
		}
	}

	return nil
}

// testGroup runs go test for one group. The report reads its events.
func (r *run) testGroup(ctx context.Context, g group, flags, environment []string, report *report) error {
	args := []string{"test", "-json"}

	if r.usage {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("run tests: %w", err)
		}

		args = append(args, "-exec", "'"+self+"' "+execCommand)
	}

	cmd := exec.CommandContext(ctx, "go", slices.Concat(args, flags, g.packages)...)
	cmd.Dir, cmd.Env, cmd.Stderr = r.dir, environment, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = interruptGracePeriod

	if g.race { // the race detector needs cgo
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

	// Ignore the exit code, because the events report failed tests.
	if exitErr := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exitErr) {
		return fmt.Errorf("run tests: %w", err)
	}

	return ctx.Err()
}
