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

// pipeWait is how long output is awaited after the program has gone.
const pipeWait = 2 * time.Second

// Program is what runs in a machine.
type Program struct {
	// Path of the program.
	Path string
	// Config is its configuration file, and Root the machine's root directory.
	Config, Root string
	// Console takes what it prints.
	Console io.Writer
	// Running is told the program's process group when it has started, and 0 when it has
	// ended.
	Running func(group int)
}

// Run runs the program until it exits or the context, which is the machine's power, ends.
// What it leaves running ends with it.
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
	p.Running(cmd.Process.Pid)
	err := cmd.Wait()
	p.Running(0)
	// Power-off ends whatever the program left running.
	if kerr := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); kerr != nil && !errors.Is(kerr, syscall.ESRCH) {
		_, _ = fmt.Fprintf(p.Console, "guest: end processes: %s\n", kerr)
	}
	return err
}

// Alive tells whether a process group has a member that is not a zombie.
func Alive(group int) bool {
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
