// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	api "github.com/hyperfleet/hyperfleet/api/guest"
)

// Credentials of the configuration.
const (
	reportToken = "cmVwb3J0LXRva2VuLWZvci10ZXN0cw"
	secret      = "c3dvcmRmaXNoLXN3b3JkZmlzaA=="
)

// reports receives the reports of a machine, as the operator does.
type reports struct {
	*httptest.Server

	mu   sync.Mutex
	list []api.Report
}

func newReports(t *testing.T) *reports {
	t.Helper()

	r := &reports{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		var report api.Report

		if err := json.NewDecoder(request.Body).Decode(&report); err != nil || request.Header.Get("Authorization") != "Bearer "+reportToken {
			w.WriteHeader(http.StatusBadRequest)

			return
		}

		r.mu.Lock()
		defer r.mu.Unlock()

		r.list = append(r.list, report)
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(r.Close)

	return r
}

// phases returns the phases in their order, and the last report.
func (r *reports) phases(t *testing.T) (phases []api.Phase, last api.Report) {
	t.Helper()

	r.mu.Lock()
	defer r.mu.Unlock()

	for _, report := range r.list {
		if len(phases) == 0 || phases[len(phases)-1] != report.Phase {
			phases = append(phases, report.Phase)
		}

		last = report
	}

	return phases, last
}

// installFolder is the folder of the runners, with a space as in the names of users.
const installFolder = `C:\Users\build user\runner`

// windowsCase is one run of the service.
type windowsCase struct {
	name string
	// program is the simulated runner of a platform. It is empty for GitHub, whose runner starts with a script.
	program string
	// change changes the configuration, which is that of a GitHub runner. root is the root of all paths on drive C.
	change func(c *api.Config, root string)
	script string
	// fromMedium is true if the configuration is only on the machine's medium.
	fromMedium bool
	// inSetup is true if Windows is being set up when the service starts, as after sysprep.
	inSetup bool
	code    int
	want    api.Report
	// log lists texts of the job's log. ROOT stands for the root of all paths.
	log []string
}

// asPlatform returns a change to the configuration of another platform.
func asPlatform(platform, program, jobID string) func(*api.Config, string) {
	return func(c *api.Config, _ string) {
		c.Platform, c.JITConfig, c.RunnerToken, c.JobID = platform, "", secret, jobID
		c.RegistrationURL, c.Runner.Program = "https://ci.example/a b?x=1&y=%PATH%", program
		c.Labels = []string{"windows"}
	}
}

// succeeded is the last report of a job that succeeded.
func succeeded() api.Report {
	return api.Report{Phase: api.PhaseFinished, Reason: api.ReasonJobDone, Result: "success"}
}

// newCases returns jobs of GitHub, whose runner is a script.
func newCases() []windowsCase {
	const runs = "@echo off\r\n\"%~dp0runner.exe\""

	return []windowsCase{
		{name: "a job is done", script: runs + "\r\n", want: succeeded(), log: []string{"token *** in C:", "f\u00fcr in code page 437"}},
		{
			name: "a job takes too long", script: runs + " hang\r\n", code: 1,
			change: func(c *api.Config, _ string) { c.JobTimeout = api.Duration(3 * time.Second) },
			want:   api.Report{Phase: api.PhaseFailed, Reason: api.ReasonJobTimeout},
		},
		{
			name: "the runner exits with an error", script: "@echo off\r\nexit /b 9\r\n", code: 1,
			want: api.Report{Phase: api.PhaseFailed, Reason: api.ReasonRunnerFailed},
		},
		{
			name: "the configuration is on the medium", script: runs + "\r\n", fromMedium: true, want: succeeded(),
			log: []string{"token *** in C:"},
		},
		{
			name: "Windows is being set up", script: runs + "\r\n", inSetup: true, want: succeeded(),
			log: []string{"token *** in C:"},
		},
		{
			// The script prints the text of the runner's own run.cmd.
			name: "run.cmd restarts the runner forever", code: 1,
			script: "@echo off\r\n:again\r\necho \"Restarting runner...\"\r\nping 127.0.0.1 -n 2 >NUL\r\ngoto again\r\n",
			change: func(c *api.Config, _ string) { c.IdleTimeout = api.Duration(2 * time.Minute) },
			want:   api.Report{Phase: api.PhaseFailed, Reason: api.ReasonRunnerFailed},
		},
		{
			name: "the runner registers", script: runs + " run\r\n", want: succeeded(),
			change: func(c *api.Config, _ string) {
				c.JITConfig, c.RunnerToken, c.RegistrationURL = "", secret, "https://github.example/a?b=c&d=%PATH%"
				c.Labels = []string{"windows", "a&b", "%PATH%", "c^d"}
			},
			log: []string{`registered win-1|windows,a&b,%PATH%,c^d|https://github.example/a?b=c&d=%PATH%|ROOT\work folder`},
		},
		{
			name: "only the hook says that it's a job", script: runs + " hook\r\n", code: 1, // the root has an apostrophe
			want: api.Report{Phase: api.PhaseFailed, Reason: api.ReasonRunnerFailed},
		},
	}
}

// newPlatformCases returns jobs of the other platforms.
func newPlatformCases() []windowsCase {
	const gitLab, agent = installFolder + `\gitlab-runner.exe`, installFolder + `\buildkite-agent.exe`

	return []windowsCase{
		{
			name: "gitlab", program: "gitlab-runner.exe", want: succeeded(), change: asPlatform("gitlab-ci", gitLab, ""),
			log: []string{
				`args ["run-single","--url","https://ci.example/a b?x=1\u0026y=%PATH%","--executor","shell",` +
					`"--builds-dir","ROOTJSON\\work folder","--max-builds","1","--shell","powershell"]`,
				"token ***",
			},
		},
		{
			name: "buildkite", program: "buildkite-agent.exe", change: asPlatform("buildkite", agent, "job-1"),
			want: api.Report{Phase: api.PhaseFinished, Reason: api.ReasonJobDone, Result: "failed"},
			log:  []string{`args ["start","--acquire-job","job-1"]`, `token *** hooks ROOT\buildkite-agent\hooks`},
		},
		{
			name: "forgejo", program: "forgejo-runner.exe",
			want: api.Report{Phase: api.PhaseFinished, Reason: api.ReasonJobDone},
			change: func(c *api.Config, root string) {
				asPlatform("forgejo-actions", installFolder+`\forgejo-runner.exe`, "job-1")(c, root)
				c.JITConfig = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
			},
			log: []string{
				`"--token-url","file:///C:/ROOTURL/opt/hyperfleet/runner-token","--handle","job-1","--wait"`,
				`"--config","ROOTJSON\\work folder\\config.yaml","--label","windows:host"]`, "settings ***",
			},
		},
		{
			name: "gitea", program: "act_runner.exe", want: api.Report{Phase: api.PhaseFinished, Reason: api.ReasonJobDone},
			change: func(c *api.Config, root string) {
				asPlatform("gitea-actions", installFolder+`\act_runner.exe`, "")(c, root)
				c.JITConfig, c.Environment = "1b4e28ba-2fa1-11d2-883f-0016d3cca427", map[string]string{"A": "b"}
			},
			log: []string{`args ["daemon","--config","ROOTJSON\\work folder\\config.yaml"]`, `"token":"***"`, `"labels":["windows:host"]`},
		},
		{
			name: "generic", program: "job.exe", want: succeeded(), log: []string{"in C:"},
			change: func(c *api.Config, _ string) {
				c.Platform, c.JITConfig, c.JobID, c.Command = "generic", "", "job-1", []string{installFolder + `\job.exe`}
			},
		},
		{
			// The path is the operator's default, which is one of Linux.
			name: "gitlab in its own folder", program: "GitLab-Runner", want: succeeded(),
			change: asPlatform("gitlab-ci", "/usr/bin/gitlab-runner", ""), log: []string{"token ***"},
		},
		{
			name: "buildkite in its own folder", program: "buildkite-agent",
			change: asPlatform("buildkite", "/usr/bin/buildkite-agent", "job-1"),
			want:   api.Report{Phase: api.PhaseFinished, Reason: api.ReasonJobDone, Result: "failed"},
			log:    []string{"token ***"},
		},
	}
}

// TestJobsOnWindows runs jobs with the bootstrap service under Wine. Each case has its own root and its own reports.
func TestJobsOnWindows(t *testing.T) { //nolint:paralleltest // the cases count processes
	w := newWine(t)
	service := w.build("../../../cmd/bootstrap-service", "bootstrap-service.exe")

	program, err := os.ReadFile(w.build("./runner", "runner.exe"))
	if err != nil {
		t.Fatal(err)
	}

	for i, test := range append(newCases(), newPlatformCases()...) {
		t.Run(test.name, func(t *testing.T) {
			reported := newReports(t)
			name := fmt.Sprintf("it's %d", i)
			root := filepath.Join(w.drive(), name)
			w.installRunner(root, test, program)

			config := newConfig(reported.URL, name)
			if test.change != nil {
				test.change(config, name)
			}

			data, err := json.Marshal(config)
			if err != nil {
				t.Fatal(err)
			}

			file := filepath.Join(root, "etc", "hyperfleet", "runner-config.json")
			if test.fromMedium {
				w.insertMedium(t, string(data))
			} else {
				w.write(file, data)
			}

			if test.inSetup {
				w.endSetupLater(t, reported)
			}

			cmd := w.command(t.Context(), service, "--root", `C:\`+name)
			out, err := cmd.CombinedOutput()

			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) || cmd.ProcessState.ExitCode() != test.code {
				t.Fatalf("the service ended with %v, want code %d\n%s", err, test.code, out)
			}

			phases, last := reported.phases(t)
			if last.Phase != test.want.Phase || last.Reason != test.want.Reason || last.Result != test.want.Result {
				t.Errorf("phases %v, last report %+v, want %+v", phases, last, test.want)
			}

			if strings.Contains(test.name, "hook") && !slices.Contains(phases, api.PhaseRunning) {
				t.Errorf("phases %v: the hook did not report the job", phases)
			}

			checkLog(t, test, name, last.Log, string(out))

			hooks := filepath.Join(root, "ProgramData", "HyperFleet", "hooks")
			for _, name := range []string{file, filepath.Join(root, "opt", "hyperfleet", "runner-token"), filepath.Join(root, "work folder"), hooks} {
				if _, err := os.Stat(name); !os.IsNotExist(err) {
					t.Errorf("%s is left: %v", name, err)
				}
			}

			if count := countProcesses(".exe leftover"); count > 0 {
				t.Errorf("%d processes of the job are left", count)
			}
		})
	}
}

// newConfig returns the configuration of a GitHub runner, whose root is a folder of drive C.
func newConfig(reportURL, root string) *api.Config {
	return &api.Config{
		Method: api.MethodRunnerToken, Platform: "github-actions", RunnerName: "win-1", JITConfig: secret,
		Runner:      api.Runner{InstallPath: installFolder, WorkDir: `C:\work folder`},
		Report:      &api.ReportTo{URL: reportURL, Token: reportToken},
		Environment: map[string]string{"WORK_FOLDER": `C:\` + root + `\work folder`},
	}
}

// installRunner writes the simulated runner of a platform and its scripts.
func (w *wine) installRunner(root string, test windowsCase, program []byte) {
	w.t.Helper()

	install := filepath.Join(root, "Users", "build user", "runner")

	switch test.program {
	case "":
		w.write(filepath.Join(install, "runner.exe"), program)
		w.write(filepath.Join(install, "run.cmd"), []byte(test.script))
		w.write(filepath.Join(install, "config.cmd"), []byte("@echo off\r\n\"%~dp0runner.exe\" config %*\r\n"))
	case "GitLab-Runner":
		w.write(filepath.Join(root, test.program, "gitlab-runner.exe"), program)
	case "buildkite-agent":
		w.write(filepath.Join(root, test.program, "bin", "buildkite-agent.exe"), program)
	default:
		w.write(filepath.Join(install, test.program), program)
		w.write(filepath.Join(root, "buildkite-agent", "hooks", "environment"), nil)
	}
}

// checkLog compares the log of the job in the last report. out is the output of the service.
func checkLog(t *testing.T, test windowsCase, root, log, out string) {
	t.Helper()

	if strings.Contains(log+out, secret) {
		t.Errorf("the log contains the credential:\n%s\n%s", log, out)
	}

	if strings.Contains(log, "\r") {
		t.Errorf("the log contains carriage returns: %q", log)
	}

	for _, text := range test.log {
		text = strings.NewReplacer("ROOTURL", url.PathEscape(root), "ROOTJSON", `C:\\`+root, "ROOT", `C:\`+root).Replace(text)
		if !strings.Contains(log, text) {
			t.Errorf("the log of the job does not contain %q:\n%s", text, log)
		}
	}
}

// insertMedium makes a folder a drive with the label of cloud-init's medium.
func (w *wine) insertMedium(t *testing.T, config string) {
	t.Helper()

	medium := t.TempDir()
	w.write(filepath.Join(medium, ".windows-label"), []byte("CIDATA\n"))
	w.write(filepath.Join(medium, "user-data"), []byte("#cloud-config\nwrite_files:\n- path: "+api.ConfigPath+"\n  content: '"+
		strings.ReplaceAll(config, "'", "''")+"'\n"))

	drive := filepath.Join(w.prefix, "dosdevices", "e:")
	if err := os.Symlink(medium, drive); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = os.Remove(drive) })
}

// setupTime is how long the setup of Windows takes. The service would report within this time.
const setupTime = 15 * time.Second

// endSetupLater sets the value that Windows has during its setup, and clears it later. Until then, the service must not
// report anything.
func (w *wine) endSetupLater(t *testing.T, reported *reports) {
	t.Helper()

	set := func(value string) {
		args := []string{"reg", "add", `HKLM\SYSTEM\Setup`, "/v", "SystemSetupInProgress", "/t", "REG_DWORD", "/d", value, "/f"}
		if out, err := w.command(context.Background(), args...).CombinedOutput(); err != nil {
			t.Errorf("set the registry: %v\n%s", err, out)
		}
	}

	set("1")

	done := make(chan struct{})
	time.AfterFunc(setupTime, func() {
		defer close(done)

		if phases, _ := reported.phases(t); len(phases) > 0 {
			t.Errorf("the service reported %v while Windows was being set up", phases)
		}

		set("0")
	})
	t.Cleanup(func() { <-done })
}
