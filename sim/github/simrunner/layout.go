// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package simrunner

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// InstallDir is the folder below root in which Layout installs the runner.
const InstallDir = "opt/actions-runner"

// listenerName is the path of the program in the installation of the real runner.
const listenerName = "bin/Runner.Listener"

// startScript starts the simulated runner with the script's own folder as root, wherever the
// installation was copied to. It starts no other program, because a thousand machines may share a
// processor.
const startScript = `#!/bin/sh
# Simulated GitHub Actions runner: %[1]s.
case $0 in */*) root=${0%%/*} ;; *) root=. ;; esac
exec "$root/` + listenerName + `" runner --root "$root" %[1]s "$@"
`

// Layout writes a runner installation below root: opt/actions-runner with config.sh, run.sh and the
// simulated runner. binary is the path of a forgesim program. Layout copies the program, or creates
// a symbolic link to it if link is set (for machines that share the host's file system). Layout
// replaces existing files, but keeps the configuration of a runner.
func Layout(root, binary string, link bool) error {
	dir := filepath.Join(root, InstallDir)
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
		return fmt.Errorf("install runner: %w", err)
	}
	for name, verb := range map[string]string{"config.sh": "config", "run.sh": "run"} {
		if err := replace(filepath.Join(dir, name), fmt.Appendf(nil, startScript, verb)); err != nil {
			return err
		}
	}
	target := filepath.Join(dir, listenerName)
	if link {
		absolute, err := filepath.Abs(binary)
		if err != nil {
			return fmt.Errorf("install runner: %w", err)
		}
		_ = os.Remove(target)
		if err := os.Symlink(absolute, target); err != nil {
			return fmt.Errorf("install runner: %w", err)
		}
		return nil
	}
	source, err := os.Open(binary)
	if err != nil {
		return fmt.Errorf("install runner: %w", err)
	}
	defer func() { _ = source.Close() }()
	text, err := io.ReadAll(source)
	if err != nil {
		return fmt.Errorf("install runner: %w", err)
	}
	return replace(target, text)
}

// replace writes an executable to a temporary file in the same folder and renames it, because a
// running program cannot be written to.
func replace(path string, text []byte) error {
	temporary := path + ".new"
	if err := os.WriteFile(temporary, text, 0o755); err != nil {
		return fmt.Errorf("install runner: %w", err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("install runner: %w", err)
	}
	return nil
}
