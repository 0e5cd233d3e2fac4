// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/sim/github/simrunner"
)

// ask makes one call to the forge's API and reads its reply.
func ask(t *testing.T, s *githubtest.Server, path string, body map[string]any, reply any) {
	t.Helper()

	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}

	var payload *bytes.Reader
	if body == nil {
		payload = bytes.NewReader(nil)
	} else {
		payload = bytes.NewReader(data)
	}

	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/repos/"+githubtest.Repo+"/actions/runners/"+path, payload)
	if err != nil {
		t.Fatal(err)
	}

	req.Header.Set("Authorization", "Bearer "+githubtest.PAT)

	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}

	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}

	defer func() { _ = resp.Body.Close() }()

	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("%s: %s", path, resp.Status)
	}

	if err := json.NewDecoder(resp.Body).Decode(reply); err != nil {
		t.Fatal(err)
	}
}

// TestJobOfASimulatedForge runs the whole way: a job is queued, the program runs the
// stand-in runner, and the forge sees the job done and the runner gone.
func TestJobOfASimulatedForge(t *testing.T) {
	t.Parallel()

	labels := []string{"self-hosted", "linux"}

	credentials := map[string]func(*testing.T, *githubtest.Server, *api.Config){
		"jit": func(t *testing.T, s *githubtest.Server, c *api.Config) {
			t.Helper()

			var reply struct {
				Blob string `json:"encoded_jit_config"`
			}

			ask(t, s, "generate-jitconfig", map[string]any{"name": c.RunnerName, "runner_group_id": 1, "labels": labels}, &reply)
			c.JITConfig = reply.Blob
		},
		"token": func(t *testing.T, s *githubtest.Server, c *api.Config) {
			t.Helper()

			var reply struct{ Token string }

			ask(t, s, "registration-token", nil, &reply)
			c.RunnerToken, c.RegistrationURL = reply.Token, s.URL+"/"+githubtest.Repo
		},
	}
	jobs := map[string]struct {
		spec         control.JobSpec
		stop         bool
		phase        api.Phase
		reason, says string
		conclusion   string
	}{
		"succeeds":   {control.JobSpec{Duration: 20 * time.Millisecond}, false, api.PhaseFinished, api.ReasonJobDone, "Succeeded", "success"},
		"fails":      {control.JobSpec{Command: "exit 3"}, false, api.PhaseFinished, api.ReasonJobDone, "Failed", "failure"},
		"never came": {control.JobSpec{}, true, api.PhaseFinished, api.ReasonTerminated, "told to stop", ""},
	}

	for by, credential := range credentials {
		for name, tc := range jobs {
			t.Run(by+", job "+name, func(t *testing.T) {
				t.Parallel()

				s := githubtest.New(t, github.Options{})
				c := api.Config{Method: api.MethodRunnerToken, Platform: "github-actions", RunnerName: "vm-1", Labels: labels}
				credential(t, s, &c)

				if !tc.stop {
					tc.spec.Labels = labels
					s.Queue(tc.spec)
				}

				data, err := json.Marshal(c)
				if err != nil {
					t.Fatal(err)
				}

				dir := root(t, "", string(data))
				layOut(t, dir)

				var out bytes.Buffer

				cmd := exec.Command(program, "--root", dir)
				cmd.Stdout, cmd.Stderr = &out, &out

				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}

				if tc.stop {
					waitForListening(t, dir)

					if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
						t.Fatal(err)
					}
				}

				_ = cmd.Wait()

				checkEnd(t, dir, out.String(), tc.phase, tc.reason, tc.says)

				if strings.Contains(out.String(), c.JITConfig+c.RunnerToken) {
					t.Error("the credential is in the log")
				}

				state := s.State()
				if !tc.stop && (state.Jobs[0].Conclusion != tc.conclusion || len(state.Runners) != 0) {
					t.Errorf("the forge has job %+v and runners %+v\n%s", state.Jobs[0], state.Runners, &out)
				}

				if tc.stop && state.Runners[0].Online {
					t.Error("the runner is still online")
				}
			})
		}
	}
}

// layOut puts the stand-in runner into a machine's root directory.
func layOut(t *testing.T, dir string) {
	t.Helper()

	// As in root.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()

	if err := simrunner.Layout(dir, forgesim, true); err != nil {
		t.Fatal(err)
	}
}

func checkEnd(t *testing.T, dir, out string, phase api.Phase, reason, says string) {
	t.Helper()

	report := readReport(t, dir)
	if report.Phase != phase || report.Reason != reason || !strings.Contains(report.Message, says) {
		t.Errorf("ended with %+v, want %s, %s, %q\n%s", report, phase, reason, says, out)
	}

	if phase == api.PhaseFinished && strings.Contains(reason, "Job") && !strings.Contains(out, "phase=Running") {
		t.Errorf("no phase Running:\n%s", out)
	}
}

// readReport gives the last report of a machine.
func readReport(t *testing.T, dir string) api.Report {
	t.Helper()

	data, err := os.ReadFile(filepath.Join(dir, api.StatusPath))
	if err != nil {
		t.Fatal(err)
	}

	var report api.Report
	if err := json.Unmarshal(data, &report); err != nil {
		t.Fatal(err)
	}

	return report
}
