// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	gh "github.com/google/go-github/v88/github"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/forge/forgesim"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/sim/github/simrunner"
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

// startForgesim serves a simulated GitHub in a process of its own.
func startForgesim(t *testing.T, args ...string) *program {
	t.Helper()
	args = append([]string{"github", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "-E"}, args...)
	p := &program{cmd: forgesimCommand(t, "", args...), exports: map[string]string{}, stderr: &bytes.Buffer{}}
	p.cmd.Stderr = p.stderr
	out, err := p.cmd.StdoutPipe()
	must(t, err)
	must(t, p.cmd.Start())
	lines := bufio.NewScanner(out)
	for p.exports["GITHUB_REPOSITORY"] == "" && lines.Scan() {
		name, value, _ := strings.Cut(strings.TrimPrefix(lines.Text(), "export "), "=")
		p.exports[name] = value
	}
	if p.exports["GITHUB_REPOSITORY"] == "" {
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

// layout makes a runner installation whose program is this test program.
func layout(t *testing.T) (dir string) {
	t.Helper()
	root := t.TempDir()
	self, err := os.Executable()
	must(t, err)
	must(t, simrunner.Layout(root, self, true))
	return filepath.Join(root, simrunner.InstallDir)
}

func TestProcesses(t *testing.T) {
	hooks := githubtest.NewReceiver(t)
	secret := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(secret, []byte(hookSecret+"\n"), 0o600))
	p := startForgesim(t, "--org", "octo-org", "--webhook-url", hooks.URL, "--webhook-secret-file", secret, "--lost-timeout", "1s")
	c := control.NewClient(p.exports["FORGESIM_CONTROL_URL"])
	api := client(t, p.exports["GITHUB_API_URL"], p.exports["GITHUB_TOKEN"])
	queue := func(command string) {
		t.Helper()
		_, err := c.Queue(t.Context(), control.JobSpec{Repo: "octo-org/demo", Labels: []string{"self-hosted", "vm"}, Command: command})
		must(t, err)
	}
	jitBlob := func(name string) string {
		t.Helper()
		made, _, err := api.Actions.GenerateOrgJITConfig(t.Context(), "octo-org",
			&gh.GenerateJITConfigRequest{Name: name, RunnerGroupID: 1, Labels: []string{"self-hosted", "vm"}})
		must(t, err)
		return made.GetEncodedJITConfig()
	}

	t.Run("run.sh --jitconfig", func(t *testing.T) {
		queue("echo worked")
		dir := layout(t)
		out, err := forgesimCommand(t, filepath.Join(dir, "run.sh"), "--jitconfig", jitBlob("one")).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "worked") || !strings.Contains(string(out), "Listening for Jobs") {
			t.Fatalf("run.sh: %v\n%s", err, out)
		}
	})
	t.Run("JIT configuration from the environment", func(t *testing.T) {
		queue("true")
		run := forgesimCommand(t, filepath.Join(layout(t), "run.sh"))
		run.Env = append(run.Env, "ACTIONS_RUNNER_INPUT_JITCONFIG="+jitBlob("env"))
		if out, err := run.CombinedOutput(); err != nil {
			t.Fatalf("run.sh: %v\n%s", err, out)
		}
	})
	t.Run("config.sh, then run.sh", func(t *testing.T) {
		queue("true")
		dir := layout(t)
		token, _, err := api.Actions.CreateOrganizationRegistrationToken(t.Context(), "octo-org")
		must(t, err)
		config := forgesimCommand(t, filepath.Join(dir, "config.sh"), "--url", p.exports["GITHUB_SERVER_URL"]+"/octo-org",
			"--token", token.GetToken(), "--name", "two", "--labels", "vm", "--ephemeral", "--unattended", "--disableupdate")
		if out, err := config.CombinedOutput(); err != nil {
			t.Fatalf("config.sh: %v\n%s", err, out)
		}
		if out, err := forgesimCommand(t, filepath.Join(dir, "run.sh")).CombinedOutput(); err != nil {
			t.Fatalf("run.sh: %v\n%s", err, out)
		}
	})
	t.Run("SIGTERM ends an idle runner", func(t *testing.T) {
		run := forgesimCommand(t, filepath.Join(layout(t), "run.sh"), "--jitconfig", jitBlob("idle"))
		must(t, run.Start())
		waitState(t, c, "it is online", idle(1))
		must(t, run.Process.Signal(syscall.SIGTERM))
		if err := run.Wait(); err != nil {
			t.Errorf("run.sh after SIGTERM: %v", err)
		}
	})
	t.Run("a killed runner loses its job", func(t *testing.T) {
		before, err := c.State(t.Context())
		must(t, err)
		queue("exec sleep 60")
		run := forgesimCommand(t, filepath.Join(layout(t), "run.sh"), "--jitconfig", jitBlob("killed"))
		run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		must(t, run.Start())
		waitState(t, c, "the job runs", running(1))
		must(t, run.Process.Kill())
		_ = run.Wait()
		state := waitState(t, c, "the job failed", completed(len(before.Jobs)+1))
		if got := state.Jobs[len(state.Jobs)-1]; got.Conclusion != "failure" || got.RunnerName != "killed" {
			t.Errorf("job: %+v", got)
		}
	})
	state := waitState(t, c, "all webhooks came", func(st control.State) bool { return st.Webhooks.Pending == 0 })
	if want := 3 * len(state.Jobs); state.Webhooks.Delivered != want {
		t.Errorf("%d webhooks came, want %d", state.Webhooks.Delivered, want)
	}
	event(t, hooks.Received()[0]) // signed with the secret of the file
	if code := p.stop(t); code != 0 {
		t.Errorf("forgesim exits %d: %s", code, p.stderr)
	}
}

func TestForgesimWithAppAndViolation(t *testing.T) {
	key := newKey(t)
	dir := t.TempDir()
	keyFile, patFile := filepath.Join(dir, "key.pem"), filepath.Join(dir, "pat")
	must(t, os.WriteFile(keyFile, pemOf(key), 0o600))
	must(t, os.WriteFile(patFile, []byte("ghp_mine\n"), 0o600))
	p := startForgesim(t, "--repo", "octo-org/octo-repo,octo-org/b", "--app-id", "4711", "--app-key-file", keyFile,
		"--pat-file", patFile, "--faults", "webhookLost=0.5,jitDelay=1ms", "--seed", "3")
	if p.exports["GITHUB_TOKEN"] != "ghp_mine" || p.exports["GITHUB_APP_INSTALLATION_ID"] != "50000001" {
		t.Errorf("exports: %v", p.exports)
	}
	s := &githubtest.Server{URL: p.exports["GITHUB_API_URL"]}
	_, asInstallation := appClient(t, s, key)
	_, _, err := asInstallation.Actions.ListRunners(t.Context(), "octo-org", "octo-repo", nil)
	must(t, err)
	_, _, err = asInstallation.Actions.ListArtifacts(t.Context(), "octo-org", "octo-repo", nil)
	if err == nil || !strings.Contains(err.Error(), "501") {
		t.Errorf("a call that is not simulated: %v", err)
	}
	if code := p.stop(t); code != 3 || !strings.Contains(p.stderr.String(), "contract violations") {
		t.Errorf("exit code %d, want 3: %s", code, p.stderr)
	}
}

func TestForgesimRefusals(t *testing.T) { //nolint:tparallel // it comes before the processes of other tests
	empty := filepath.Join(t.TempDir(), "empty")
	must(t, os.WriteFile(empty, nil, 0o600))
	for name, args := range map[string][]string{
		"no command":           {},
		"unknown command":      {"gerrit"},
		"unknown flag":         {"github", "--nope"},
		"argument":             {"github", "x"},
		"unknown fault":        {"github", "--faults", "nope=1"},
		"fault without value":  {"github", "--faults", "webhookLost"},
		"fault not a number":   {"github", "--faults", "webhookLost=x"},
		"probability of two":   {"github", "--faults", "webhookLost=2"},
		"empty token":          {"github", "--pat-file", empty},
		"missing token file":   {"github", "--pat-file", empty + "x"},
		"App without key":      {"github", "--app-id", "1"},
		"key is no PEM":        {"github", "--app-id", "1", "--app-key-file", empty},
		"bad repository":       {"github", "--repo", "x"},
		"control for everyone": {"github", "--listen", "127.0.0.1:0", "--control", "0.0.0.0:0"},
		"address in use":       {"github", "--listen", "256.0.0.1:1"},
		"image without folder": {"image"},
		"runner without verb":  {"runner"},
		"runner, unknown verb": {"runner", "fly"},
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

func TestImageCopies(t *testing.T) {
	dir := t.TempDir()
	if out, err := forgesimCommand(t, "", "image", dir).CombinedOutput(); err != nil {
		t.Fatalf("image: %v\n%s", err, out)
	}
	info, err := os.Lstat(filepath.Join(dir, simrunner.InstallDir, "bin", "Runner.Listener"))
	must(t, err)
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		t.Errorf("the program is %v", info.Mode())
	}
	if out, err := forgesimCommand(t, filepath.Join(dir, simrunner.InstallDir, "run.sh")).CombinedOutput(); err == nil || !strings.Contains(string(out), "not configured") {
		t.Errorf("run.sh of a fresh image: %v\n%s", err, out)
	}
}
