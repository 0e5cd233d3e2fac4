// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package generic_test

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/forge/forgesim"
	"github.com/hyperfleet/hyperfleet/sim/generic/generictest"
)

// asForgesim makes this test program behave as the forgesim program.
const asForgesim = "HYPERFLEET_TEST_AS_FORGESIM"

func TestMain(m *testing.M) {
	if os.Getenv(asForgesim) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		code := forgesim.Run(ctx, os.Args[1:], os.Stdout, os.Stderr)
		stop()
		os.Exit(code)
	}
	goleak.VerifyTestMain(m)
}

// forgesimCommand prepares this test program to run as forgesim.
func forgesimCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), asForgesim+"=1")
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

func TestProcesses(t *testing.T) {
	t.Parallel()
	hooks := generictest.NewReceiver(t, nil)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(generictest.Secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := forgesimCommand(t, "generic", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "-E",
		"--source", "scans", "--webhook-url", hooks.URL, "--webhook-secret-file", secret, "--updates", "--faults", "serverError=0.1")
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exports := map[string]string{}
	for lines := bufio.NewScanner(out); exports["FORGESIM_JOBS_URL"] == "" && lines.Scan(); {
		name, value, _ := strings.Cut(strings.TrimPrefix(lines.Text(), "export "), "=")
		exports[name] = value
	}
	client := control.NewClient(exports["FORGESIM_CONTROL_URL"])
	jobs, err := client.Queue(t.Context(), control.JobSpec{Command: "echo hello; exit 4", Labels: []string{"x"}})
	if err != nil {
		t.Fatalf("%v\n%s", err, &log)
	}
	work := forgesimCommand(t, "generic-job")
	work.Env = append(work.Env, "HYPERFLEET_JOB_ID="+jobs[0].Key, "HYPERFLEET_JOB_NAME=build", "HYPERFLEET_JOB_SOURCE=scans",
		"HYPERFLEET_JOB_LABELS=x", "HYPERFLEET_JOB_URL="+exports["FORGESIM_JOBS_URL"]+"/jobs/"+jobs[0].Key)
	if said, err := work.CombinedOutput(); work.ProcessState.ExitCode() != 4 || !strings.Contains(string(said), "hello") {
		t.Errorf("%v: %s", err, said)
	}
	var state control.State
	for range 2000 {
		if state, err = client.State(t.Context()); err != nil || state.Webhooks.Delivered == 3 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil || state.Jobs[0].Conclusion != "failure" {
		t.Errorf("%+v, %v", state, err)
	}
	for i, want := range []string{"", "running", "completed"} {
		if got := heard(t, hooks.Received()[i]); got.State != want || got.Source != "scans" {
			t.Errorf("webhook %d speaks of %+v", i, got)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with %v\n%s", err, &log)
	}
	if !strings.Contains(log.String(), "generic sender on http://127.0.0.1:") {
		t.Errorf("no line that it is ready:\n%s", &log)
	}
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		code int
		says string
	}{
		"unknown flag":      {[]string{"generic", "--unknown"}, 1, "flag provided but not defined"},
		"argument":          {[]string{"generic", "x"}, 1, `unexpected argument "x"`},
		"unknown signature": {[]string{"generic", "--signature", "none"}, 1, `signature "none" is unknown`},
		"unknown fault":     {[]string{"generic", "--faults", "deleteBusy=1"}, 1, "this sender has"},
		"no secret":         {[]string{"generic", "--webhook-secret-file", "/none"}, 1, "read secret"},
		"control for all":   {[]string{"generic", "--listen", "127.0.0.1:0", "--control", "0.0.0.0:0"}, 1, "not a loopback address"},
		"a job's argument":  {[]string{"generic-job", "x"}, 2, "takes no arguments"},
		"no job":            {[]string{"generic-job"}, 64, "must be set"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			if code := forgesim.Run(t.Context(), tc.args, &out, &out); code != tc.code || !strings.Contains(out.String(), tc.says) {
				t.Errorf("exit code %d, want %d:\n%s", code, tc.code, &out)
			}
		})
	}
}
