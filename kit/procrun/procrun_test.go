// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package procrun_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
)

func TestMain(m *testing.M) {
	if os.Getenv("PROCRUN_TEST_PARENT") != "" {
		runParent()

		return
	}

	goleak.VerifyTestMain(m)
}

// runParent is a program that starts a child, prints its id, and is then killed.
func runParent() {
	child, err := procrun.Start(context.Background(), procrun.Spec{Path: "/bin/sleep", Args: []string{"600"}})
	if err != nil {
		os.Exit(3)
	}

	_, _ = os.Stdout.WriteString(strconv.Itoa(child.PID()) + "\n")

	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

func startShell(t *testing.T, script string, grace time.Duration) *procrun.Process {
	t.Helper()

	process, err := procrun.Start(t.Context(), procrun.Spec{
		Name: "script", Path: "/bin/sh", Args: []string{"-c", script},
		LogPath: filepath.Join(t.TempDir(), "logs", "out.log"), GracePeriod: grace,
	})
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := process.Kill(); err != nil {
			t.Error(err)
		}
	})

	return process
}

// waitUntilGone waits until no process with the id runs.
func waitUntilGone(t *testing.T, pid int) {
	t.Helper()

	for range 200 {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}

		time.Sleep(50 * time.Millisecond)
	}

	t.Errorf("process %d still runs", pid)
}

// waitForOutput waits until the process has written want, and returns its output.
func waitForOutput(t *testing.T, process *procrun.Process, want string) string {
	t.Helper()

	err := process.WaitReady(t.Context(), func(context.Context) error {
		if strings.Contains(process.LogTail(), want) {
			return nil
		}

		return errors.ErrUnsupported
	})
	if err != nil {
		t.Fatal(err)
	}

	return process.LogTail()
}

func TestExit(t *testing.T) {
	t.Parallel()

	good := startShell(t, "echo hello; exit 0", 0)
	if err := good.Wait(t.Context()); err != nil || good.ExitCode() != 0 || good.LogTail() != "hello" {
		t.Errorf("Wait() = %v, code %d, log %q", err, good.ExitCode(), good.LogTail())
	}

	if good.MaxRSS() <= 0 {
		t.Errorf("MaxRSS() = %d", good.MaxRSS())
	}

	bad := startShell(t, "exit 7", 0)
	if err := bad.Wait(t.Context()); err == nil || bad.ExitCode() != 7 {
		t.Errorf("Wait() = %v, code %d", err, bad.ExitCode())
	}

	if err := bad.Stop(); err != nil {
		t.Errorf("Stop() of an ended process = %v", err)
	}
}

func TestStopEndsTheWholeGroup(t *testing.T) {
	t.Parallel()

	process := startShell(t, `sleep 600 & echo "child $!."; wait`, 0)
	text := waitForOutput(t, process, ".")

	child, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(text, "child "), "."))
	if err != nil {
		t.Fatal(err)
	}

	if err := process.Stop(); err != nil {
		t.Fatal(err)
	}

	waitUntilGone(t, process.PID())
	waitUntilGone(t, child)
}

func TestStopKillsWhatIgnoresTheSignal(t *testing.T) {
	t.Parallel()

	process := startShell(t, `trap "" TERM; echo ready; while :; do sleep 1; done`, 100*time.Millisecond)
	waitForOutput(t, process, "ready")

	if err := process.Stop(); err != nil {
		t.Fatal(err)
	}

	if process.ExitCode() != -1 {
		t.Errorf("code %d, want an end by a signal", process.ExitCode())
	}
}

func TestRemainingChildrenAreKilled(t *testing.T) {
	t.Parallel()

	process := startShell(t, `sleep 600 & echo "$!"`, 0)
	if err := process.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}

	child, err := strconv.Atoi(process.LogTail())
	if err != nil {
		t.Fatal(err)
	}

	waitUntilGone(t, child)
}

func TestContextStopsTheProcess(t *testing.T) {
	t.Parallel()

	ctx, cancel := context.WithCancel(t.Context())

	process, err := procrun.Start(ctx, procrun.Spec{Path: "/bin/sleep", Args: []string{"600"}})
	if err != nil {
		t.Fatal(err)
	}

	cancel()

	if err := process.Wait(t.Context()); err == nil {
		t.Error("the process succeeded, want an end by a signal")
	}
}

func TestChildEndsWithAKilledParent(t *testing.T) {
	t.Parallel()

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), "PROCRUN_TEST_PARENT=1")

	out, err := cmd.Output()
	if err == nil {
		t.Fatal("the parent was not killed")
	}

	child, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}

	waitUntilGone(t, child)
}

func TestStartAndReadinessErrors(t *testing.T) {
	t.Parallel()

	_, err := procrun.Start(t.Context(), procrun.Spec{Path: "/no/such/program"})
	if !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(err.Error(), "start program: ") {
		t.Errorf("Start() = %v", err)
	}

	process := startShell(t, "echo no licence; exit 4", 0)

	err = process.WaitReady(t.Context(), func(context.Context) error { return errors.ErrUnsupported })
	if !errors.Is(err, procrun.ErrExited) || !strings.Contains(err.Error(), "with code 4: no licence") {
		t.Errorf("WaitReady() = %v", err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	err = startShell(t, "sleep 600", 0).WaitReady(ctx, func(context.Context) error { return errors.ErrUnsupported })
	if !errors.Is(err, context.Canceled) || !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("WaitReady() = %v", err)
	}
}
