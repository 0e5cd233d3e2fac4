// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package simrunner

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// InstallDir is where Layout puts the runner, below its root.
const InstallDir = "opt/actions-runner"

// listenerName is what the real runner calls its program.
const listenerName = "bin/Runner.Listener"

// script starts the stand-in with the script's own folder as root, wherever the
// installation was copied to. It starts no program besides: a thousand machines may
// share a processor.
const script = `#!/bin/sh
# Stand-in for the GitHub Actions runner: %[1]s.
case $0 in */*) root=${0%%/*} ;; *) root=. ;; esac
exec "$root/` + listenerName + `" runner --root "$root" %[1]s "$@"
`

// Layout writes a runner installation below root: opt/actions-runner with
// config.sh, run.sh and the stand-in program. binary is a forgesim program; it
// is copied, or linked to when link is set (for machines that share the host's
// file system). Existing files are replaced; a configured runner stays so.
func Layout(root, binary string, link bool) error {
	dir := filepath.Join(root, InstallDir)
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
		return fmt.Errorf("lay out runner: %w", err)
	}
	for name, verb := range map[string]string{"config.sh": "config", "run.sh": "run"} {
		if err := replace(filepath.Join(dir, name), fmt.Appendf(nil, script, verb)); err != nil {
			return err
		}
	}
	target := filepath.Join(dir, listenerName)
	if link {
		absolute, err := filepath.Abs(binary)
		if err != nil {
			return fmt.Errorf("lay out runner: %w", err)
		}
		_ = os.Remove(target)
		if err := os.Symlink(absolute, target); err != nil {
			return fmt.Errorf("lay out runner: %w", err)
		}
		return nil
	}
	source, err := os.Open(binary)
	if err != nil {
		return fmt.Errorf("lay out runner: %w", err)
	}
	defer func() { _ = source.Close() }()
	text, err := io.ReadAll(source)
	if err != nil {
		return fmt.Errorf("lay out runner: %w", err)
	}
	return replace(target, text)
}

// replace writes an executable beside its place and renames it there, so that a
// running program is not written to.
func replace(path string, text []byte) error {
	temporary := path + ".new"
	if err := os.WriteFile(temporary, text, 0o755); err != nil {
		return fmt.Errorf("lay out runner: %w", err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("lay out runner: %w", err)
	}
	return nil
}
