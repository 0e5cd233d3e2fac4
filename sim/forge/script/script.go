// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package script

import (
	"context"
	"os/exec"
	"time"
)

// New returns a command that runs a script. The first line that fails ends the script. When ctx ends, the script and the
// processes that it has started are asked to end, and the script is killed after the grace period.
func New(ctx context.Context, text string, grace time.Duration) *exec.Cmd {
	return withGrace(newShell(ctx, text), grace)
}

// NewFile returns a command that runs a script in a file, and ends as New describes. On Windows, it is a script of
// PowerShell.
func NewFile(ctx context.Context, path string, grace time.Duration) *exec.Cmd {
	return withGrace(newFile(ctx, path), grace)
}

func withGrace(cmd *exec.Cmd, grace time.Duration) *exec.Cmd {
	setGroup(cmd)
	cmd.WaitDelay = grace
	return cmd
}
