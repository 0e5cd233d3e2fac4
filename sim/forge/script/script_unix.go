// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package script

import (
	"context"
	"os/exec"
	"syscall"
)

func newShell(ctx context.Context, text string) *exec.Cmd {
	return exec.CommandContext(ctx, "/bin/sh", "-e", "-c", text)
}

func newFile(ctx context.Context, path string) *exec.Cmd { return exec.CommandContext(ctx, path) }

func setGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
}
