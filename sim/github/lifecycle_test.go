// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"strings"
	"testing"
	"time"

	gh "github.com/google/go-github/v88/github"

	"github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/control"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
)

func TestJITRunnerTakesAJob(t *testing.T) {
	hooks := githubtest.NewReceiver(t)
	s := githubtest.New(t, github.Options{Webhook: control.WebhookTarget{URL: hooks.URL, Secret: "s3cret"}})
	c := client(t, s.URL, githubtest.PAT)
	jit, _, err := c.Actions.GenerateRepoJITConfig(t.Context(), "octo-org", "octo-repo", &gh.GenerateJITConfigRequest{
		Name: "vm-1", RunnerGroupID: 1, Labels: []string{"self-hosted", "Linux", "x64"},
	})
	if err != nil {
		t.Fatal(err)
	}
	job := s.Queue(control.JobSpec{Labels: []string{"self-hosted", "linux"}, Duration: 10 * time.Millisecond})[0]
	r := githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", jit.GetEncodedJITConfig())
	if code := r.Wait(); code != 0 {
		t.Fatalf("exit code %d, output:\n%s", code, r.Output())
	}
	for _, line := range []string{"√ Connected to GitHub", "Listening for Jobs", "Running job: build", "Job build completed with result: Succeeded"} {
		if !strings.Contains(r.Output(), line) {
			t.Errorf("output lacks %q:\n%s", line, r.Output())
		}
	}
	state := s.Eventually("three webhooks came", func(st control.State) bool { return st.Webhooks.Delivered == 3 })
	if got := state.Jobs[0]; got.ID != job.ID || got.Conclusion != "success" || got.RunnerName != "vm-1" {
		t.Errorf("job: %+v", got)
	}
	if len(state.Runners) != 0 {
		t.Errorf("an ephemeral runner is left: %+v", state.Runners)
	}
}
