// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/generic"
	"github.com/hyperfleet/hyperfleet/sim/generic/generictest"
	"github.com/hyperfleet/hyperfleet/workload"
	product "github.com/hyperfleet/hyperfleet/workload/generic"
)

// hear gives the job that the n-th webhook of a sender speaks of.
func hear(t *testing.T, s *generictest.Server, r *generictest.Receiver, n int) workload.Job {
	t.Helper()
	s.Eventually("the webhook is delivered", func(control.State) bool { return len(r.Received()) >= n })

	hook := r.Received()[n-1]

	var platform product.Platform
	if err := platform.Verify(hook.Header, hook.Body, []byte(generictest.Secret)); err != nil {
		t.Fatal(err)
	}

	job, ok, err := platform.Parse(hook.Header, hook.Body)
	if err != nil || !ok {
		t.Fatalf("%t, %v", ok, err)
	}

	return job
}

// configFor is the configuration of a machine that does the job with the command.
func configFor(t *testing.T, job workload.Job, command ...string) *api.Config {
	t.Helper()

	var platform product.Platform

	runner, err := platform.Runner(nil, v1alpha1.Workload{
		Type: v1alpha1.WorkloadGeneric,
		Config: &v1alpha1.WorkloadConfig{Generic: &v1alpha1.GenericConfig{
			Source: generictest.Source, Labels: []string{"linux", "GPU"}, Command: command,
		}},
	})
	if err != nil {
		t.Fatal(err)
	}

	if fit := platform.Fit(runner, job); !fit.Takes {
		t.Fatalf("the job is not taken: %+v", fit)
	}

	provider, err := platform.Open(workload.Config{Runner: runner})
	if err != nil {
		t.Fatal(err)
	}

	credential, err := provider.Issue(t.Context(), workload.RunnerRequest{Name: "vm-1", Job: &job})
	if err != nil {
		t.Fatal(err)
	}

	config := &api.Config{
		Method: api.MethodRunnerToken, Platform: runner.Platform, RunnerName: "vm-1", Runner: runner.Program, Command: runner.Command,
	}
	credential.Apply(config)

	return config
}

// TestJobOfASender runs the whole way: a job is queued, its webhook is read, the program
// does it with the stand-in command, and the sender has seen it done.
func TestJobOfASender(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		spec       control.JobSpec
		code       int
		reason     string
		says       string
		conclusion string
		log        string
	}{
		"succeeds": {
			control.JobSpec{Duration: 20 * time.Millisecond, Name: "scan all", Labels: []string{"gpu"}},
			0, api.ReasonJobDone, "job gen-1001: success (exit code 0)", "success", "job gen-1001 (scan all) started",
		},
		"fails": {
			control.JobSpec{Command: "echo what it says; exit 3"},
			0, api.ReasonJobDone, "job gen-1001: failure (exit code 3)", "failure", "what it says",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			r := generictest.NewReceiver(t, nil)
			s := generictest.New(t, generic.Options{Webhook: control.WebhookTarget{URL: r.URL}})
			s.Queue(tc.spec)

			data, err := json.Marshal(configFor(t, hear(t, s, r, 1), forgesim, "generic-job"))
			if err != nil {
				t.Fatal(err)
			}

			dir := root(t, "", string(data))

			var out bytes.Buffer

			cmd := exec.Command(program, "--root", dir)
			cmd.Env = []string{} // a machine's own may be as empty
			cmd.Stdout, cmd.Stderr = &out, &out

			if err := cmd.Run(); (err == nil) != (tc.code == 0) {
				t.Fatalf("%v\n%s", err, &out)
			}

			checkEnd(t, dir, out.String(), api.PhaseFinished, tc.reason, tc.says)
			checkLog(t, dir, tc.log)

			if job := s.State().Jobs[0]; job.Conclusion != tc.conclusion || job.Requeues != 0 {
				t.Errorf("the sender has job %+v\n%s", job, &out)
			}
		})
	}
}

// checkLog looks into the log of the last report.
func checkLog(t *testing.T, dir, says string) {
	t.Helper()

	if report := readReport(t, dir); !strings.Contains(report.Log, says) {
		t.Errorf("the last report's log is %q, want %q in it", report.Log, says)
	}
}
