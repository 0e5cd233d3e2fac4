// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"path"
	"strings"
)

// executableSuffix ends the names of programs.
const executableSuffix = ""

// IsRoot reports whether a path is the root of the file system.
func IsRoot(p string) bool { return path.Clean(p) == "/" }

func isAbsolute(p string) bool { return path.IsAbs(p) }

// absolute returns an absolute path as it is.
func absolute(p string) string { return p }

// scriptName returns the name of a script as it is.
func scriptName(name string) string { return name }

// programName returns the path of a platform's program as it is.
func programName(p string) string { return p }

// formatFileURL returns the URL of a file.
func formatFileURL(p string) string { return "file:" + p }

// decodeOutput returns a line that a program has printed. It replaces bytes that are not valid UTF-8.
func decodeOutput(line []byte) string { return strings.ToValidUTF8(string(line), "?") }

// buildkiteHooks is the directory in which the agent's packages install the machine's hooks.
const buildkiteHooks = "/etc/buildkite-agent/hooks"

// addInput passes an input to a script of GitHub's runner.
func addInput(l *launch, name, value string) { l.args = append(l.args, "--"+name, value) }

// gitLabShell returns no arguments: the default shell of jobs is bash.
func gitLabShell() []string { return nil }
