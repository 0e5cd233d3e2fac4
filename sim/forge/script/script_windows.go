// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package script

import (
	"context"
	"os/exec"
	"strings"
	"syscall"
)

// newShell returns cmd.exe with the arguments of buildkite-agent on Windows. The lines of the script are its commands.
func newShell(ctx context.Context, text string) *exec.Cmd {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\r' || r == '\n' })
	cmd := exec.CommandContext(ctx, "cmd.exe")
	cmd.SysProcAttr = &syscall.SysProcAttr{CmdLine: `cmd.exe /S /C "` + strings.Join(lines, " && ") + `"`}
	return cmd
}

// newFile returns Windows PowerShell with the arguments of GitHub's runner.
func newFile(ctx context.Context, path string) *exec.Cmd {
	return exec.CommandContext(ctx, "powershell.exe", "-command", ". '"+strings.ReplaceAll(path, "'", "''")+"'")
}

// setGroup does nothing: the job object of the runner ends all processes, and Windows has no signal that asks a group
// without a console to end.
func setGroup(*exec.Cmd) {}
