// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package execguest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// pipeWait is how long Run waits for the rest of the output after the program has exited.
const pipeWait = 2 * time.Second

// Program is the program that runs in a machine.
type Program struct {
	// Path is the path of the program.
	Path string
	// Config is the path of the program's configuration file, and Root is the machine's root
	// directory.
	Config, Root string
	// Console receives what the program prints.
	Console io.Writer
	// ReportGroup is called with the program's process group after the start, and with 0 after the
	// end.
	ReportGroup func(group int)
}

// Run runs the program until it exits or until ctx ends. ctx stands for the machine's power. Run
// kills all processes that the program has left running.
func (p Program) Run(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, p.Path, "--config", p.Config, "--root", p.Root) // #nosec G204 -- the test's own
	cmd.Env = []string{}
	cmd.Dir = p.Root
	cmd.Stdout, cmd.Stderr = p.Console, p.Console
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = pipeWait
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start program: %w", err)
	}
	p.ReportGroup(cmd.Process.Pid)
	err := cmd.Wait()
	p.ReportGroup(0)
	// A machine without power has no processes, so Run kills the ones that the program has left
	// running.
	if kerr := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); kerr != nil && !errors.Is(kerr, syscall.ESRCH) {
		_, _ = fmt.Fprintf(p.Console, "guest: kill remaining processes: %s\n", kerr)
	}
	return err
}

// IsAlive returns true if the process group has a member that is not a zombie.
func IsAlive(group int) bool {
	if syscall.Kill(-group, 0) != nil {
		return false
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		return true
	}
	for _, name := range stats {
		raw, err := os.ReadFile(name) // #nosec G304 -- /proc
		if err != nil {
			continue
		}
		_, rest, ok := strings.Cut(string(raw), ") ") // pid (comm) state ppid pgrp
		fields := strings.Fields(rest)
		if ok && len(fields) > 2 && fields[2] == strconv.Itoa(group) && fields[0] != "Z" && fields[0] != "X" {
			return true
		}
	}
	return false
}
