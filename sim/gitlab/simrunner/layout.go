// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package simrunner

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Where Layout puts the stand-in, below its root.
const (
	ProgramPath = "usr/bin/gitlab-runner"
	binaryPath  = "usr/lib/gitlab-runner/forgesim"
)

// script starts the stand-in, wherever its installation was copied to.
const script = `#!/bin/sh
# Stand-in for gitlab-runner.
here=$(cd "$(dirname "$0")" && pwd) || exit 1
exec "$here/../lib/gitlab-runner/forgesim" gitlab-runner "$@"
`

// Layout writes a gitlab-runner below root: usr/bin/gitlab-runner and the stand-in program
// that it starts. binary is a forgesim program; it is copied, or linked to when link is
// set (for machines that share the host's file system). Existing files are replaced.
func Layout(root, binary string, link bool) error {
	for _, path := range []string{ProgramPath, binaryPath} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
			return fmt.Errorf("lay out gitlab-runner: %w", err)
		}
	}
	if err := replace(filepath.Join(root, ProgramPath), []byte(script)); err != nil {
		return err
	}
	target := filepath.Join(root, binaryPath)
	if link {
		absolute, err := filepath.Abs(binary)
		if err != nil {
			return fmt.Errorf("lay out gitlab-runner: %w", err)
		}
		_ = os.Remove(target)
		if err := os.Symlink(absolute, target); err != nil {
			return fmt.Errorf("lay out gitlab-runner: %w", err)
		}
		return nil
	}
	source, err := os.Open(binary)
	if err != nil {
		return fmt.Errorf("lay out gitlab-runner: %w", err)
	}
	defer func() { _ = source.Close() }()
	text, err := io.ReadAll(source)
	if err != nil {
		return fmt.Errorf("lay out gitlab-runner: %w", err)
	}
	return replace(target, text)
}

// replace writes an executable beside its place and renames it there, so that a running
// program is not written to.
func replace(path string, text []byte) error {
	temporary := path + ".new"
	if err := os.WriteFile(temporary, text, 0o755); err != nil {
		return fmt.Errorf("lay out gitlab-runner: %w", err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("lay out gitlab-runner: %w", err)
	}
	return nil
}
