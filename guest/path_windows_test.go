// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// Windows does not distinguish upper and lower case in the names of environment variables.
func TestVariablesHaveNoCase(t *testing.T) {
	t.Parallel()

	for _, name := range []string{hookVariable, "actions_runner_hook_job_started", "Actions_Runner_Hook_Job_Started"} {
		s := New(Options{Root: t.TempDir()})
		if s.environment = []string{name + `=C:\hook.ps1`}; !s.hasUserHook() {
			t.Errorf("%s is not the user's hook", name)
		}

		if s.environment = []string{name + "="}; s.hasUserHook() {
			t.Errorf("an empty %s is a hook", name)
		}
	}

	got := withoutPrefixes([]string{"Path=a", "spiffe_endpoint_socket=b", "Actions_Runner_Input_Token=c", "SPIFFE_X=d"}, inputPrefix, "SPIFFE_")
	if diff := cmp.Diff([]string{"Path=a"}, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}

func TestPathsOfWindows(t *testing.T) {
	t.Parallel()

	s := New(Options{})
	for path, want := range map[string]string{
		guest.ConfigPath:                    `C:\etc\hyperfleet\runner-config.json`,
		dockerConfig:                        `C:\ProgramData\docker\config\daemon.json`,
		`D:\runner work`:                    `D:\runner work`,
		`C:/runner/../actions`:              `C:\actions`,
		nativeProgram("/usr/bin/x"):         `C:\usr\bin\x`,
		nativeProgram(defaultGitLabProgram): `C:\GitLab-Runner\gitlab-runner.exe`,
	} {
		if got := s.path(path); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}

	for path, want := range map[string]bool{"/": true, `C:\`: true, `C:\a\..`: true, "/tmp/..": true, `C:\a`: false, "/tmp": false, "C:": false} {
		if got := IsRoot(path); got != want {
			t.Errorf("IsRoot(%s) = %t", path, got)
		}
	}
}

func TestScriptsStayInTheRunner(t *testing.T) {
	t.Parallel()

	for name, want := range map[string]bool{
		"run.cmd": true, `bin\run.cmd`: true, "bin/run.cmd": true, `..\run.cmd`: false, `bin\..\..\run.cmd`: false, `C:\run.cmd`: false,
		`C:run.cmd`: false, `\run.cmd`: false, `\\host\share\run.cmd`: false,
	} {
		err := validatePaths(&guest.Runner{InstallPath: `C:\runner`, WorkDir: `C:\work`, ConfigScript: "config.cmd", RunScript: name})
		if got := err == nil; got != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLinksOfWindowsStayInTheFolder(t *testing.T) {
	t.Parallel()

	for target, want := range map[string]bool{
		"x": true, `..\x`: true, "../x": true, `..\..\x`: false, "../../x": false, `C:\x`: false, `C:x`: false, `\x`: false, `\\host\share\x`: false,
	} {
		if err := validateLinkTarget("dir", target); (err == nil) != want {
			t.Errorf("%s: %v", target, err)
		}
	}
}

// The program of a generic job may have a path of Windows.
func TestProgramOfGenericJob(t *testing.T) {
	t.Parallel()

	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "job.exe"), nil, 0o600); err != nil {
		t.Fatal(err)
	}

	s := New(Options{Root: root})
	for command, want := range map[string]string{
		`C:\job.exe`: filepath.Join(root, "job.exe"), "/job.exe": filepath.Join(root, "job.exe"), `C:\other.exe`: `C:\other.exe`,
		"powershell": "powershell",
	} {
		got := generic{}.newLaunch(s, &guest.Config{Command: []string{command}, Runner: guest.Runner{WorkDir: `C:\work`}})
		if got.path != want {
			t.Errorf("%s is %s, want %s", command, got.path, want)
		}
	}
}

// The path of a script may contain characters at which cmd.exe ends an unquoted path.
func TestPathsOfScripts(t *testing.T) {
	t.Parallel()

	file := filepath.Join(t.TempDir(), "a,b;c=d&e(f)", "run.cmd")
	script := []byte("@echo off\r\necho %~1-%~2\r\n")

	if err := errors.Join(os.Mkdir(filepath.Dir(file), 0o700), os.WriteFile(file, script, 0o600)); err != nil {
		t.Fatal(err)
	}

	var out bytes.Buffer

	cmd := exec.Command(file, "--name", "two words")
	cmd.Stdout = &out
	setOwnGroup(cmd)

	err := startGroup(cmd)
	if err == nil {
		err = cmd.Wait()
	}

	if got := strings.TrimSpace(out.String()); err != nil || got != "--name-two words" {
		t.Errorf("the script printed %q, %v", got, err)
	}
}
