// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"cmp"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// executableSuffix ends the names of programs.
const executableSuffix = ""

// IsRoot reports whether a path is the root of the file system.
func IsRoot(p string) bool { return path.Clean(p) == "/" }

func isAbsolute(p string) bool { return path.IsAbs(p) }

// withDrive returns the path as it is, because Linux has no drives.
func withDrive(p string) string { return p }

// nativeScript returns the name of a script as it is.
func nativeScript(name string) string { return name }

// nativeProgram returns the path of a platform's program as it is.
func nativeProgram(p string) string { return p }

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

// foldVariable returns the name of an environment variable as it is, because Linux distinguishes upper and lower case.
func foldVariable(name string) string { return name }

// defaultPath is the PATH that systemd sets for services.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// lookUpCommand returns the path of an executable file in PATH, or in defaultPath if the service has no PATH.
// It returns the name unchanged if it finds no file.
func lookUpCommand(name string) string {
	for _, dir := range filepath.SplitList(cmp.Or(os.Getenv("PATH"), defaultPath)) {
		file := filepath.Join(dir, name)
		//nolint:gosec // PATH is the machine's own
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return file
		}
	}

	return name
}
