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
	// execCommand makes this program one that go test runs a test program by: it notes the
	// CPU time that the test program and all that it started have taken, which go test's
	// events do not tell.
	execCommand = "exec"
	// envUsage names the file that usages are added to, a line of JSON each.
	envUsage = "HYPERFLEETTEST_USAGE"
)

// usage is the CPU time of a test program.
type usage struct {
	// Dir is the folder of its package.
	Dir string
	CPU time.Duration
}

// execute runs a test program, and gives its exit code.
func execute(program string, args []string) int {
	// The kernel ends the program with the thread that started it.
	runtime.LockOSThread()

	cmd := exec.Command(program, args...) //nolint:noctx // go test bounds its time
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	endWithParent(cmd)

	// go test ends a program that takes too long by SIGQUIT, for its goroutines.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)

	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)

		return 1
	}

	go func() {
		for got := range signals {
			_ = cmd.Process.Signal(got)
		}
	}()

	err := cmd.Wait()
	note(cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime())

	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, err)

		return 1
	}

	if code := cmd.ProcessState.ExitCode(); code >= 0 {
		return code
	}

	fmt.Fprintln(os.Stderr, cmd.ProcessState)

	return 1
}

// note adds a usage to the file. What can't be noted is missing in a table, and no failure.
func note(cpu time.Duration) {
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

// account knows the CPU time of the run's packages: of their test programs by the file, and
// of the servers that were theirs by what is billed.
type account struct {
	file string
	root string

	mu     sync.Mutex
	billed map[string]time.Duration
}

// bill adds what a server did for the package in a folder.
func (a *account) bill(dir string, cpu time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.billed[dir] += cpu
}

// perPackage is the CPU time by a package's path inside of the module.
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

// ofServers is what the servers did for all of the packages.
func (a *account) ofServers() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()

	var total time.Duration
	for _, cpu := range a.billed {
		total += cpu
	}

	return total
}

// cpuOf is the CPU time that running processes have taken so far; 0 where /proc does not
// tell.
func cpuOf(pids []int) time.Duration {
	// USER_HZ is 100 on every architecture that Go runs on (proc(5)).
	const tick = time.Second / 100

	var total time.Duration

	for _, pid := range pids {
		data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			continue
		}

		// The name, in parentheses, may have spaces. utime and stime are the 12th and 13th
		// field behind it.
		fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
		if len(fields) < 13 { //nolint:mnd // as above
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
