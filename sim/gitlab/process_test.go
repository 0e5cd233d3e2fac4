// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/forge/forgesim"
	"github.com/hyperfleet/hyperfleet/sim/gitlab/gitlabtest"
)

// program is a forgesim process.
type program struct {
	cmd     *exec.Cmd
	exports map[string]string
	stderr  *bytes.Buffer
}

// forgesimCommand prepares this test program to run as forgesim.
func forgesimCommand(t *testing.T, path string, args ...string) *exec.Cmd {
	t.Helper()
	if path == "" {
		self, err := os.Executable()
		must(t, err)
		path = self
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = append(os.Environ(), asForgesim+"=1")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// startForgesim serves a simulated GitLab in a process of its own.
func startForgesim(t *testing.T, args ...string) *program {
	t.Helper()
	args = append([]string{"gitlab", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "-E"}, args...)
	p := &program{cmd: forgesimCommand(t, "", args...), exports: map[string]string{}, stderr: &bytes.Buffer{}}
	p.cmd.Stderr = p.stderr
	out, err := p.cmd.StdoutPipe()
	must(t, err)
	must(t, p.cmd.Start())
	lines := bufio.NewScanner(out)
	for p.exports["GITLAB_PROJECT"] == "" && lines.Scan() {
		name, value, _ := strings.Cut(strings.TrimPrefix(lines.Text(), "export "), "=")
		p.exports[name] = value
	}
	if p.exports["GITLAB_PROJECT"] == "" {
		_ = p.cmd.Wait()
		t.Fatalf("forgesim did not start: %s", p.stderr)
	}
	return p
}

func (p *program) stop(t *testing.T) int {
	t.Helper()
	must(t, p.cmd.Process.Signal(syscall.SIGTERM))
	_ = p.cmd.Wait()
	return p.cmd.ProcessState.ExitCode()
}

func waitState(t *testing.T, c *control.Client, what string, cond func(control.State) bool) control.State {
	t.Helper()
	for range 6000 { // a minute
		state, err := c.State(t.Context())
		must(t, err)
		if cond(state) {
			return state
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("timed out waiting until %s", what)
	return control.State{}
}

// plainCall makes one call over the network.
func plainCall(t *testing.T, method, address, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
	must(t, err)
	req.Header = http.Header{"Private-Token": {"glpat-mine"}, "Content-Type": {"application/json"}}
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, string(text)
}

// registered makes a runner of group acme and returns its token.
func registered(t *testing.T, base string) string {
	t.Helper()
	code, text := plainCall(t, "POST", base+"/api/v4/user/runners",
		`{"runner_type":"group_type","group_id":35,"description":"vm","tag_list":["vm"]}`)
	var made struct{ Token string }
	must(t, json.Unmarshal([]byte(text), &made))
	if code != http.StatusCreated {
		t.Fatalf("make a runner: %d %s", code, text)
	}
	return made.Token
}

// The programs as the demo and the machines start them.
func TestProcesses(t *testing.T) {
	hooks := gitlabtest.NewReceiver(t)
	dir := t.TempDir()
	secret, token := filepath.Join(dir, "secret"), filepath.Join(dir, "token")
	must(t, os.WriteFile(secret, []byte("of the hook\n"), 0o600))
	must(t, os.WriteFile(token, []byte("glpat-mine\n"), 0o600))
	p := startForgesim(t, "--project", "acme/app,acme/b", "--webhook-url", hooks.URL, "--webhook-secret-file", secret,
		"--token-file", token, "--lost-timeout", "1s", "--faults", "jitDelay=1ms", "--seed", "3")
	if p.exports["GITLAB_TOKEN"] != "glpat-mine" || p.exports["GITLAB_PROJECT"] != "acme/app" || p.exports["CI_SERVER_URL"] != p.exports["GITLAB_URL"] {
		t.Errorf("exports: %v", p.exports)
	}
	c := control.NewClient(p.exports["FORGESIM_CONTROL_URL"])

	image := t.TempDir()
	if out, err := forgesimCommand(t, "", "image", "--link", image).CombinedOutput(); err != nil {
		t.Fatalf("image: %v\n%s", err, out)
	}
	runner := func(more ...string) *exec.Cmd {
		t.Helper()
		given := registered(t, p.exports["GITLAB_URL"])
		cmd := forgesimCommand(t, filepath.Join(image, "usr", "bin", "gitlab-runner"), append([]string{
			"run-single", "--url", p.exports["GITLAB_URL"], "--executor", "shell", "--builds-dir", filepath.Join(dir, "builds"), "--max-builds", "1",
		}, more...)...)
		cmd.Env = append(cmd.Env, "CI_SERVER_TOKEN="+given, "RUNNER_ENV=CI_SERVER_TOKEN=", "RUNNER_NAME=vm")
		return cmd
	}
	queue := func(command string) int64 {
		t.Helper()
		jobs, err := c.Queue(t.Context(), control.JobSpec{Repo: "acme/app", Labels: []string{"vm"}, Command: command})
		must(t, err)
		return jobs[0].ID
	}

	t.Run("one job", func(t *testing.T) {
		queue("test -z \"$CI_SERVER_TOKEN\" && test $CI_PROJECT_PATH = acme/app")
		out, err := runner().CombinedOutput()
		if err != nil || !strings.Contains(string(out), "Job succeeded") {
			t.Fatalf("run-single: %v\n%s", err, out)
		}
	})
	t.Run("SIGQUIT lets a job end", func(t *testing.T) {
		file := filepath.Join(dir, "go")
		queue(fmt.Sprintf("while [ ! -e %s ]; do sleep 0.02; done", file))
		run := runner()
		must(t, run.Start())
		waitState(t, c, "the job runs", running(1))
		must(t, run.Process.Signal(syscall.SIGQUIT))
		must(t, os.WriteFile(file, nil, 0o600))
		if err := run.Wait(); err != nil {
			t.Errorf("run-single after SIGQUIT: %v", err)
		}
		waitState(t, c, "the job is over", func(st control.State) bool { return st.Jobs[1].Conclusion == "success" })
	})
	t.Run("a killed runner loses its job", func(t *testing.T) {
		queue("exec sleep 5")
		run := runner()
		run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		must(t, run.Start())
		waitState(t, c, "the job runs", running(1))
		must(t, run.Process.Kill())
		_ = run.Wait()
		state := waitState(t, c, "the job failed", completed(3))
		if got := state.Jobs[2]; got.Conclusion != "failure" || got.RunnerName != "vm" {
			t.Errorf("job: %+v", got)
		}
	})
	waitState(t, c, "all webhooks came", func(st control.State) bool { return st.Webhooks.Pending == 0 })
	if got := hooks.Received(); len(got) != 12 || got[0].Header.Get("X-Gitlab-Token") != "of the hook" {
		t.Errorf("%d webhooks came", len(got))
	}
	if code := p.stop(t); code != 0 {
		t.Errorf("forgesim exits %d: %s", code, p.stderr)
	}
}

func TestForgesimTellsBreaches(t *testing.T) {
	p := startForgesim(t)
	if code, text := plainCall(t, "GET", p.exports["GITLAB_URL"]+"/api/v4/version", ""); code != http.StatusNotImplemented {
		t.Errorf("a call that is not simulated: %d %s", code, text)
	}
	if code := p.stop(t); code != 3 || !strings.Contains(p.stderr.String(), "contract violations") {
		t.Errorf("exit code %d, want 3: %s", code, p.stderr)
	}
}

func TestForgesimRefusals(t *testing.T) { //nolint:tparallel // it comes before the processes of other tests
	empty := filepath.Join(t.TempDir(), "empty")
	must(t, os.WriteFile(empty, nil, 0o600))
	for name, args := range map[string][]string{
		"unknown flag":          {"gitlab", "--nope"},
		"argument":              {"gitlab", "x"},
		"unknown fault":         {"gitlab", "--faults", "nope=1"},
		"probability of two":    {"gitlab", "--faults", "webhookLost=2"},
		"empty token":           {"gitlab", "--token-file", empty},
		"missing token file":    {"gitlab", "--token-file", empty + "x"},
		"bad project":           {"gitlab", "--project", "x"},
		"control for everyone":  {"gitlab", "--listen", "127.0.0.1:0", "--control", "0.0.0.0:0"},
		"address in use":        {"gitlab", "--listen", "256.0.0.1:1"},
		"runner without a verb": {"gitlab-runner"},
		"runner, unknown verb":  {"gitlab-runner", "fly"},
		"runner without a URL":  {"gitlab-runner", "run-single"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			if code := forgesim.Run(t.Context(), args, &out, &out); code == 0 {
				t.Errorf("accepted:\n%s", &out)
			}
		})
	}
}
