// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package generic_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/generic"
	"github.com/hyperfleet/hyperfleet/sim/generic/generictest"
	"github.com/hyperfleet/hyperfleet/sim/generic/simjob"
)

// newEnvironment returns the environment of the command of a job.
func newEnvironment(s *generictest.Server, j control.Job) map[string]string {
	return map[string]string{
		"HYPERFLEET_JOB_ID": j.Key, "HYPERFLEET_JOB_NAME": j.Name, "HYPERFLEET_JOB_SOURCE": j.Repo,
		"HYPERFLEET_JOB_URL": s.URL + "/jobs/" + j.Key, "HYPERFLEET_JOB_LABELS": strings.Join(j.Labels, ","),
	}
}

func TestMainProgram(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spec       control.JobSpec
		faults     control.Faults
		edit       func(map[string]string)
		code       int
		wantOutput string
		conclusion string
	}{
		"waits":             {spec: control.JobSpec{Duration: 10 * time.Millisecond, Labels: []string{"a", "b"}}, wantOutput: "finished: success", conclusion: "success"},
		"runs a command":    {spec: control.JobSpec{Command: "echo hello"}, wantOutput: "hello", conclusion: "success"},
		"a command fails":   {spec: control.JobSpec{Command: "exit 3"}, code: 3, wantOutput: "finished: failure", conclusion: "failure"},
		"the sender stalls": {faults: control.Faults{ServerError: 0.4}, wantOutput: "finished: success", conclusion: "success"},
		"no job":            {edit: func(e map[string]string) { delete(e, "HYPERFLEET_JOB_ID") }, code: 64, wantOutput: "must be set"},
		"another job's id":  {edit: func(e map[string]string) { e["HYPERFLEET_JOB_ID"] = "x" }, code: 64, wantOutput: `HYPERFLEET_JOB_ID is "x"`},
		"other labels":      {edit: func(e map[string]string) { e["HYPERFLEET_JOB_LABELS"] = "gpu" }, code: 64, wantOutput: "HYPERFLEET_JOB_LABELS"},
		"unreachable":       {edit: func(e map[string]string) { e["HYPERFLEET_JOB_URL"] = "http://127.0.0.1:bad/" }, code: 70, wantOutput: "127.0.0.1:bad"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := generictest.New(t, generic.Options{Faults: tc.faults, Seed: 3})
			job := s.Queue(tc.spec)[0]
			env := newEnvironment(s, job)
			if tc.edit != nil {
				tc.edit(env)
			}
			var out bytes.Buffer
			program := simjob.Program{Stdout: &out, Stderr: &out, Getenv: func(k string) string { return env[k] }, Host: "vm-1"}
			if code := program.Main(t.Context()); code != tc.code || !strings.Contains(out.String(), tc.wantOutput) {
				t.Errorf("exit code %d, want %d; %q in\n%s", code, tc.code, tc.wantOutput, &out)
			}
			got := s.State().Jobs[0]
			if got.Conclusion != tc.conclusion || (tc.conclusion != "" && got.RunnerName != "vm-1") {
				t.Errorf("job %+v", got)
			}
		})
	}
}

// A job that a signal stops is cancelled, and the processes that it has started end.
func TestStopSignal(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pid")
	for name, spec := range map[string]control.JobSpec{
		"waiting": {Duration: time.Hour}, "in a command": {Command: "sleep 3600 & echo $! >" + file + "; wait"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := generictest.New(t, generic.Options{})
			env := newEnvironment(s, s.Queue(spec)[0])
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var out bytes.Buffer
			program := simjob.Program{Stdout: &out, Stderr: &out, Getenv: func(k string) string { return env[k] }}
			done := make(chan int, 1)
			go func() { done <- program.Main(ctx) }()
			var child []byte
			s.WaitUntil("it runs", func(st control.State) bool {
				child, _ = os.ReadFile(file)
				return st.Jobs[0].Status == "in_progress" && (spec.Command == "" || bytes.HasSuffix(child, []byte("\n")))
			})
			cancel()
			if code := <-done; code != simjob.ExitStopped || s.State().Jobs[0].Conclusion != "cancelled" {
				t.Errorf("exit code %d, job %+v\n%s", code, s.State().Jobs[0], &out)
			}
			if spec.Command == "" {
				return
			}
			stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(child)) + "/stat")
			if err == nil && !strings.Contains(string(stat), ") Z ") { // a zombie process does not run
				t.Errorf("its child process still runs: %s", stat)
			}
		})
	}
}
