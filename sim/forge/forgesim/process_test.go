// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package forgesim_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/forge/forgesim"
)

// asForgesim makes this test program run as the forgesim program.
const asForgesim = "HYPERFLEET_TEST_AS_FORGESIM"

func TestMain(m *testing.M) {
	if os.Getenv(asForgesim) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		code := forgesim.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
		stop()
		os.Exit(code)
	}
	os.Exit(m.Run())
}

func requireNoError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newCommand prepares this test program, which may be linked to from path, to run as forgesim.
func newCommand(t *testing.T, path string, args ...string) *exec.Cmd {
	t.Helper()
	if path == "" {
		self, err := os.Executable()
		requireNoError(t, err)
		path = self
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = append(os.Environ(), asForgesim+"=1")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// program is a forgesim process.
type program struct {
	cmd     *exec.Cmd
	exports map[string]string
	stderr  *bytes.Buffer
	control *control.Client
}

// startProgram starts a process that serves a simulated platform. last is the last variable that it exports.
func startProgram(t *testing.T, last, platform string, args ...string) *program {
	t.Helper()
	args = append([]string{platform, "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "-E"}, args...)
	p := &program{cmd: newCommand(t, "", args...), exports: map[string]string{}, stderr: &bytes.Buffer{}}
	p.cmd.Stderr = p.stderr
	out, err := p.cmd.StdoutPipe()
	requireNoError(t, err)
	requireNoError(t, p.cmd.Start())
	lines := bufio.NewScanner(out)
	for p.exports[last] == "" && lines.Scan() {
		name, value, _ := strings.Cut(strings.TrimPrefix(lines.Text(), "export "), "=")
		p.exports[name] = value
	}
	if p.exports[last] == "" {
		_ = p.cmd.Wait()
		t.Fatalf("forgesim did not start: %s", p.stderr)
	}
	p.control = control.NewClient(p.exports["FORGESIM_CONTROL_URL"])
	return p
}

// requireExitCode stops the process and fails the test unless its exit code is want.
func (p *program) requireExitCode(t *testing.T, want int) {
	t.Helper()
	requireNoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	_ = p.cmd.Wait()
	if code := p.cmd.ProcessState.ExitCode(); code != want {
		t.Errorf("forgesim exits %d, want %d: %s", code, want, p.stderr)
	}
}

func (p *program) queueJob(t *testing.T, spec control.JobSpec) control.Job {
	t.Helper()
	jobs, err := p.control.Queue(t.Context(), spec)
	if err != nil {
		t.Fatalf("queue: %v\n%s", err, p.stderr)
	}
	return jobs[0]
}

func (p *program) waitUntil(t *testing.T, what string, cond func(control.State) bool) control.State {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		state, err := p.control.State(t.Context())
		requireNoError(t, err)
		if cond(state) {
			return state
		}
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting until %s: %+v", what, state)
		}
	}
}

// hasJobs returns whether n jobs have a status.
func hasJobs(status string, n int) func(control.State) bool {
	return func(st control.State) bool {
		got := 0
		for _, j := range st.Jobs {
			if j.Status == status {
				got++
			}
		}
		return got == n
	}
}

func hasNoPendingWebhooks(st control.State) bool { return st.Webhooks.Pending == 0 }

// killRunner kills a runner while it runs its job, and returns the job. The job must fail.
func (p *program) killRunner(t *testing.T, run *exec.Cmd) control.Job {
	t.Helper()
	before, err := p.control.State(t.Context())
	requireNoError(t, err)
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	requireNoError(t, run.Start())
	p.waitUntil(t, "the job runs", hasJobs("in_progress", 1))
	requireNoError(t, run.Process.Kill())
	_ = run.Wait()
	state := p.waitUntil(t, "the job failed", hasJobs("completed", len(before.Jobs)))
	job := state.Jobs[len(state.Jobs)-1]
	if job.Conclusion != "failure" {
		t.Errorf("job: %+v", job)
	}
	return job
}

func TestRejectedArguments(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty")
	requireNoError(t, os.WriteFile(empty, nil, 0o600))
	for name, tc := range map[string]struct {
		args       []string
		code       int // 0 stands for any code except success
		wantOutput string
	}{
		"no command":                    {args: nil, wantOutput: "usage"},
		"unknown command":               {args: []string{"gerrit"}, wantOutput: "unknown command"},
		"unknown flag":                  {args: []string{"generic", "--unknown"}, code: 1, wantOutput: "flag provided but not defined"},
		"argument":                      {args: []string{"generic", "x"}, code: 1, wantOutput: `unexpected argument "x"`},
		"unknown fault":                 {args: []string{"github", "--faults", "nope=1"}},
		"unsupported fault":             {args: []string{"generic", "--faults", "deleteBusy=1"}, wantOutput: "this sender has"},
		"fault without value":           {args: []string{"github", "--faults", "webhookLost"}},
		"fault not a number":            {args: []string{"github", "--faults", "webhookLost=x"}},
		"probability of two":            {args: []string{"github", "--faults", "webhookLost=2"}},
		"probability of two, GitLab":    {args: []string{"gitlab", "--faults", "webhookLost=2"}},
		"unknown fault, Buildkite":      {args: []string{"buildkite", "--faults", "rain=1"}},
		"control for everyone":          {args: []string{"generic", "--listen", "127.0.0.1:0", "--control", "0.0.0.0:0"}, wantOutput: "not a loopback address"},
		"address in use":                {args: []string{"github", "--listen", "256.0.0.1:1"}},
		"empty token":                   {args: []string{"github", "--pat-file", empty}},
		"missing token file":            {args: []string{"github", "--pat-file", empty + "x"}},
		"empty token, GitLab":           {args: []string{"gitlab", "--token-file", empty}},
		"missing token file, Buildkite": {args: []string{"buildkite", "--token-file", empty + "x"}},
		"missing secret":                {args: []string{"generic", "--webhook-secret-file", "/none"}, wantOutput: "read secret"},
		"App without key":               {args: []string{"github", "--app-id", "1"}},
		"key is no PEM":                 {args: []string{"github", "--app-id", "1", "--app-key-file", empty}},
		"bad repository":                {args: []string{"github", "--repo", "x"}},
		"bad project":                   {args: []string{"gitlab", "--project", "x"}},
		"unknown signature":             {args: []string{"generic", "--signature", "none"}, wantOutput: `signature "none" is unknown`},
		"image without folder":          {args: []string{"image"}},
		"runner without verb":           {args: []string{"runner"}},
		"runner, unknown verb":          {args: []string{"runner", "fly"}},
		"gitlab-runner without a verb":  {args: []string{"gitlab-runner"}},
		"gitlab-runner, unknown verb":   {args: []string{"gitlab-runner", "fly"}},
		"gitlab-runner without a URL":   {args: []string{"gitlab-runner", "run-single"}},
		"agent, unknown command":        {args: []string{"buildkite-agent", "annotate"}, code: 1},
		"a job's argument":              {args: []string{"generic-job", "x"}, code: 2, wantOutput: "takes no arguments"},
		"no job":                        {args: []string{"generic-job"}, code: 64, wantOutput: "must be set"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			code := forgesim.Run(t.Context(), tc.args, &out, &out)
			if code == 0 || tc.code != 0 && code != tc.code || !strings.Contains(out.String(), tc.wantOutput) {
				t.Errorf("exit code %d, want %d:\n%s", code, tc.code, &out)
			}
		})
	}
}

// An image has the simulated runners, as copies of this program or links to it.
func TestImage(t *testing.T) {
	t.Parallel()
	copied, linked := t.TempDir(), t.TempDir()
	for _, args := range [][]string{{"image", copied}, {"image", "--link", linked}} {
		if code := forgesim.Run(t.Context(), args, io.Discard, io.Discard); code != 0 {
			t.Fatalf("%v: exit %d", args, code)
		}
	}
	if info, err := os.Lstat(filepath.Join(copied, "opt", "actions-runner", "bin", "Runner.Listener")); err != nil ||
		!info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		t.Errorf("the program: %v, %v", info, err)
	}
	if info, err := os.Stat(filepath.Join(linked, "usr", "bin", "buildkite-agent")); err != nil || info.Mode().Perm()&0o111 == 0 {
		t.Errorf("buildkite-agent: %v, %v", info, err)
	}
	out, err := newCommand(t, filepath.Join(copied, "opt", "actions-runner", "run.sh")).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "not configured") {
		t.Errorf("run.sh of a fresh image: %v\n%s", err, out)
	}
}
