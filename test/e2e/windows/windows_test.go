// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
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

// TestJobsOnWindows runs jobs with the bootstrap service under Wine. Each case has its own root and its own reports, and
// all of them share one Windows installation, because it takes half a minute to create.
func TestJobsOnWindows(t *testing.T) { //nolint:paralleltest // the cases count processes
	w := newWine(t)
	service := w.build("../../../cmd/bootstrap-service", "bootstrap-service.exe")
	runner := w.build("./runner", "runner.exe")

	program, err := os.ReadFile(runner)
	if err != nil {
		t.Fatal(err)
	}

	for _, test := range []struct {
		name string
		// change changes the configuration.
		change func(*api.Config)
		script string
		// fromMedium is true if the configuration is only on the machine's medium.
		fromMedium bool
		code       int
		want       api.Report
	}{
		{
			name: "a job is done", script: "@echo off\r\n\"%~dp0runner.exe\"\r\n",
			want: api.Report{Phase: api.PhaseFinished, Reason: api.ReasonJobDone, Result: "success"},
		},
		{
			name: "a job takes too long", script: "@echo off\r\n\"%~dp0runner.exe\" hang\r\n", code: 1,
			change: func(c *api.Config) { c.JobTimeout = api.Duration(3 * time.Second) },
			want:   api.Report{Phase: api.PhaseFailed, Reason: api.ReasonJobTimeout},
		},
		{
			name: "the runner exits with an error", script: "@echo off\r\nexit /b 9\r\n", code: 1,
			want: api.Report{Phase: api.PhaseFailed, Reason: api.ReasonRunnerFailed},
		},
		{
			name: "the configuration is on the medium", script: "@echo off\r\n\"%~dp0runner.exe\"\r\n", fromMedium: true,
			want: api.Report{Phase: api.PhaseFinished, Reason: api.ReasonJobDone, Result: "success"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			reported := newReports(t)
			root := filepath.Join(w.drive(), filepath.Base(t.TempDir())+strings.ReplaceAll(test.name, " ", "-"))
			install := filepath.Join(root, "actions runner") // paths on Windows have spaces
			w.write(filepath.Join(install, "runner.exe"), program)
			w.write(filepath.Join(install, "run.cmd"), []byte(test.script))

			config := &api.Config{
				Method: api.MethodRunnerToken, Platform: "github-actions", RunnerName: "win-1", JITConfig: secret,
				Runner: api.Runner{InstallPath: `C:\actions runner`, WorkDir: `C:\work`},
				Report: &api.ReportTo{URL: reported.URL, Token: reportToken},
			}
			if test.change != nil {
				test.change(config)
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

			cmd := w.command(t.Context(), service, "--root", `C:\`+filepath.Base(root))
			out, err := cmd.CombinedOutput()

			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) || cmd.ProcessState.ExitCode() != test.code {
				t.Fatalf("the service ended with %v, want code %d\n%s", err, test.code, out)
			}

			phases, last := reported.phases(t)
			if last.Phase != test.want.Phase || last.Reason != test.want.Reason || last.Result != test.want.Result {
				t.Errorf("phases %v, last report %+v, want %+v", phases, last, test.want)
			}

			if strings.Contains(last.Log+string(out), secret) {
				t.Errorf("the log contains the credential:\n%s\n%s", last.Log, out)
			}

			if test.want.Result != "" && !strings.Contains(last.Log, "token *** in C:") {
				t.Errorf("the log of the job is %q", last.Log)
			}

			if _, err := os.Stat(file); !os.IsNotExist(err) {
				t.Errorf("the configuration is left: %v", err)
			}

			if count := countProcesses("runner.exe"); count > 0 {
				t.Errorf("%d processes of the job are left", count)
			}
		})
	}
}

// insertMedium makes a folder a drive with the label of cloud-init's medium.
func (w *wine) insertMedium(t *testing.T, config string) {
	t.Helper()

	medium := t.TempDir()
	w.write(filepath.Join(medium, ".windows-label"), []byte("CIDATA\n"))
	w.write(filepath.Join(medium, "user-data"), []byte("#cloud-config\nwrite_files:\n- path: "+api.ConfigPath+"\n  content: '"+config+"'\n"))

	drive := filepath.Join(w.prefix, "dosdevices", "e:")
	if err := os.Symlink(medium, drive); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = os.Remove(drive) })
}
