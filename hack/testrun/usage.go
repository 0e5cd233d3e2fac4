// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	// execCommand is the first argument with which go test starts this program in place of a test program. This
	// program then runs the test program and records the CPU time of the test program and its child processes.
	// The events of go test do not have this time.
	execCommand = "exec"
	// envUsage is the environment variable with the file to which each usage is appended as a line of JSON.
	envUsage = "HYPERFLEETTEST_USAGE"
)

// usage is the CPU time of a test program.
type usage struct {
	// Dir is the folder of the tested package.
	Dir string
	CPU time.Duration
}

// execute runs a test program, records its CPU time, and returns its exit code.
func execute(program string, args []string) int {
	// killWithParent makes the kernel kill the program when the thread that started it exits, so this goroutine
	// keeps its thread.
	runtime.LockOSThread()

	cmd := exec.Command(program, args...) //nolint:noctx // go test has a timeout
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	killWithParent(cmd)

	// Forward signals. go test sends SIGQUIT after its timeout, so that the program prints its goroutines.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)

	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)

		return 1
	}

	go func() {
		for received := range signals {
			_ = cmd.Process.Signal(received)
		}
	}()

	err := cmd.Wait()
	recordUsage(cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime())

	if exitErr := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exitErr) {
		fmt.Fprintln(os.Stderr, err)

		return 1
	}

	if code := cmd.ProcessState.ExitCode(); code >= 0 {
		return code
	}

	fmt.Fprintln(os.Stderr, cmd.ProcessState)

	return 1
}

// recordUsage appends a usage to the file. It ignores errors, because a missing usage is not a test failure.
func recordUsage(cpu time.Duration) {
	dir, err := os.Getwd()
	if err != nil {
		return
	}

	line, err := json.Marshal(usage{Dir: dir, CPU: cpu})
	if err != nil {
		return
	}

	const ownerOnly = 0o600

	file, err := os.OpenFile(os.Getenv(envUsage), os.O_APPEND|os.O_WRONLY|os.O_CREATE, ownerOnly)
	if err != nil {
		return
	}

	_, _ = file.Write(append(line, '\n'))
	_ = file.Close()
}

// account collects the CPU time of packages. The file has the CPU time of the test programs, and billed the CPU
// time of the servers that a package has used.
type account struct {
	file string
	root string

	mu     sync.Mutex
	billed map[string]time.Duration
}

// bill adds the CPU time that a server has used for the package in a folder.
func (a *account) bill(dir string, cpu time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.billed[dir] += cpu
}

// perPackage returns the CPU time of packages by their path in the module.
func (a *account) perPackage() map[string]time.Duration {
	out := map[string]time.Duration{}
	add := func(dir string, cpu time.Duration) {
		if path, err := filepath.Rel(a.root, dir); err == nil {
			out[filepath.ToSlash(path)] += cpu
		}
	}

	if data, err := os.ReadFile(a.file); err == nil {
		for line := range bytes.Lines(data) {
			var u usage
			if json.Unmarshal(line, &u) == nil {
				add(u.Dir, u.CPU)
			}
		}
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	for dir, cpu := range a.billed {
		add(dir, cpu)
	}

	return out
}

// serverTotal returns the CPU time that the servers have used for all packages.
func (a *account) serverTotal() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()

	var total time.Duration
	for _, cpu := range a.billed {
		total += cpu
	}

	return total
}

// processCPU returns the CPU time that running processes have used so far. It counts a process as 0 if /proc has no
// data about the process.
func processCPU(pids []int) time.Duration {
	// USER_HZ is 100 on every architecture that Go runs on (proc(5)).
	const tick = time.Second / 100

	var total time.Duration

	for _, pid := range pids {
		data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			continue
		}

		// The name in parentheses may contain spaces. utime and stime are the 12th and 13th fields after the name.
		fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
		if len(fields) < 13 { //nolint:mnd // see the comment above
			continue
		}

		for _, field := range fields[11:13] {
			if ticks, err := strconv.Atoi(string(field)); err == nil {
				total += time.Duration(ticks) * tick
			}
		}
	}

	return total
}
