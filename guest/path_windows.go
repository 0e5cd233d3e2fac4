// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"cmp"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/sys/windows"
)

// executableSuffix ends the names of programs.
const executableSuffix = ".exe"

// IsRoot reports whether a path is the root of a drive, or / for the system's drive.
func IsRoot(p string) bool {
	rest := strings.TrimPrefix(filepath.Clean(p), filepath.VolumeName(p))

	return rest == `\`
}

func isAbsolute(p string) bool { return filepath.IsAbs(p) || strings.HasPrefix(p, "/") }

// withDrive returns the path on the system's drive if it has no drive.
func withDrive(p string) string {
	if filepath.VolumeName(p) != "" {
		return p
	}

	return cmp.Or(os.Getenv("SystemDrive"), "C:") + filepath.FromSlash(p)
}

// nativeScript returns the name of a script for Windows: the configuration of a machine has run.sh and config.sh by
// default.
func nativeScript(name string) string {
	if base, ok := strings.CutSuffix(name, ".sh"); ok {
		return base + ".cmd"
	}

	return name
}

// nativeProgram returns the path of a platform's program on Windows. The configuration of a machine has the default path on
// Linux if the template names none. The replacements of GitLab and Buildkite are the folders of their installation guides
// for Windows. Forgejo and Gitea name no folder.
func nativeProgram(p string) string {
	switch p {
	case defaultGitLabProgram:
		return `C:\GitLab-Runner\gitlab-runner.exe`
	case defaultBuildkiteProgram:
		return `C:\buildkite-agent\bin\buildkite-agent.exe`
	case defaultForgejoProgram:
		return `C:\forgejo-runner\forgejo-runner.exe`
	case defaultGiteaProgram:
		return `C:\act_runner\act_runner.exe`
	default:
		return p
	}
}

// formatFileURL returns the URL of a file as RFC 8089 (appendix E.2) defines it for a path with a drive.
func formatFileURL(p string) string {
	return (&url.URL{Scheme: "file", Path: "/" + filepath.ToSlash(p)}).String()
}

// oemCodePage is the code page in which console programs print (CP_OEMCP of winnls.h).
const oemCodePage = 1

// decodeOutput returns a line that a program has printed: in UTF-8, or otherwise in the code page of the console.
func decodeOutput(line []byte) string {
	if len(line) == 0 || utf8.Valid(line) {
		return string(line)
	}

	length := int32(len(line)) //nolint:gosec // a line is at most a few kilobytes long
	text := make([]uint16, length)

	n, err := windows.MultiByteToWideChar(oemCodePage, 0, &line[0], length, &text[0], length)
	if err != nil {
		return strings.ToValidUTF8(string(line), "?")
	}

	return string(utf16.Decode(text[:n]))
}

// buildkiteHooks is the directory in which the agent's installer for Windows creates the machine's hooks.
const buildkiteHooks = `C:\buildkite-agent\hooks`

// addInput passes an input to a script of GitHub's runner. It uses an environment variable, because cmd.exe would interpret
// characters such as & and % in the arguments of a .cmd file.
func addInput(l *launch, name, value string) {
	l.env = append(l.env, formatVariable(inputPrefix+strings.ToUpper(name), value))
}

// gitLabShell returns the arguments that choose the shell of jobs: PowerShell 7 if the machine has it, and otherwise
// Windows PowerShell. The default of run-single is cmd, which GitLab no longer supports.
func gitLabShell() []string {
	for _, name := range []string{"pwsh", "powershell"} {
		if _, err := exec.LookPath(name); err == nil {
			return []string{"--shell", name}
		}
	}

	return nil
}

// foldVariable returns the name of an environment variable in upper case, because Windows does not distinguish upper and
// lower case.
func foldVariable(name string) string { return strings.ToUpper(name) }

// defaultPath is the beginning of the PATH of every installation.
const defaultPath = `C:\Windows\system32;C:\Windows`

// lookUpCommand returns the name as it is: os/exec looks it up in PATH, with the endings of PATHEXT.
func lookUpCommand(name string) string { return name }
