// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/sim/github/protocol"
)

func TestSecondSessionConflicts(t *testing.T) {
	s := githubtest.New(t, github.Options{})
	blob := createJITConfig(t, s, "vm-1", "x")
	githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", blob)
	s.WaitUntil("the runner is online", hasIdleRunners(1))
	second := githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", blob)
	if code := second.Wait(); code != 5 || !strings.Contains(second.Output(), "A session for this runner already exists") {
		t.Errorf("exit code %d, want 5:\n%s", code, second.Output())
	}
}

func TestIdleRunnerStopsOnSignal(t *testing.T) {
	s := githubtest.New(t, github.Options{})
	r := githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", createJITConfig(t, s, "vm-1", "x"))
	s.WaitUntil("the runner is online", hasIdleRunners(1))
	r.Stop()
	if code := r.Wait(); code != 0 {
		t.Errorf("exit code %d:\n%s", code, r.Output())
	}
	if state := s.State(); len(state.Runners) != 1 || state.Runners[0].Online {
		t.Errorf("after the signal the runner must be registered and offline: %+v", state.Runners)
	}
}

func TestRunnerRemovedWhileIdle(t *testing.T) {
	s := githubtest.New(t, github.Options{})
	r := githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", createJITConfig(t, s, "vm-1", "x"))
	state := s.WaitUntil("the runner is online", hasIdleRunners(1))
	if a := sendRequest(t, s, "DELETE", repoRunnerAccess+"/"+strconv.FormatInt(state.Runners[0].ID, 10), auth, nil); a.code != http.StatusNoContent {
		t.Fatalf("delete: %d %s", a.code, a.text)
	}
	if code := r.Wait(); code != 1 || !strings.Contains(r.Output(), "registration has been deleted") {
		t.Errorf("exit code %d, want 1:\n%s", code, r.Output())
	}
}

func TestConfiguredRunner(t *testing.T) {
	s := githubtest.New(t, github.Options{})
	token := createRegistrationToken(t, s, "registration-token")
	config := func(t *testing.T, dir string, extra ...string) *githubtest.Runner {
		t.Helper()
		args := append([]string{"config", "--url", s.URL + "/" + githubtest.Repo, "--token", token, "--unattended", "--disableupdate", "--work", "_work"}, extra...)
		return githubtest.StartRunner(t, dir, args...)
	}
	t.Run("ephemeral with default labels", func(t *testing.T) {
		dir := t.TempDir()
		r := config(t, dir, "--name", "a", "--labels", "gpu,big", "--ephemeral")
		if code := r.Wait(); code != 0 || !strings.Contains(r.Output(), "Settings Saved") {
			t.Fatalf("exit code %d:\n%s", code, r.Output())
		}
		if got := s.State().Runners[0]; !got.Ephemeral || strings.Join(got.Labels, ",") != "self-hosted,Linux,X64,gpu,big" {
			t.Errorf("runner: %+v", got)
		}
		s.Queue(control.JobSpec{Labels: []string{"GPU", "self-hosted"}, Command: "echo done > proof", Name: "touch"})
		run := githubtest.StartRunner(t, dir, "run")
		if code := run.Wait(); code != 0 {
			t.Errorf("run exits %d:\n%s", code, run.Output())
		}
		if _, err := os.Stat(filepath.Join(dir, "_work", "proof")); err != nil {
			t.Error(err)
		}
	})
	t.Run("same token, no default labels, then replaced and removed", func(t *testing.T) {
		dir := t.TempDir()
		if code := config(t, dir, "--name", "b", "--labels", "only", "--no-default-labels").Wait(); code != 0 {
			t.Fatalf("the token was not reusable: exit code %d", code)
		}
		if code := config(t, t.TempDir(), "--name", "b", "--labels", "x").Wait(); code != 1 {
			t.Errorf("a taken name without --replace exits %d, want 1", code)
		}
		other := t.TempDir()
		if code := config(t, other, "--name", "b", "--labels", "only", "--no-default-labels", "--replace").Wait(); code != 0 {
			t.Errorf("--replace exits %d", code)
		}
		if code := config(t, other, "--name", "b").Wait(); code != 1 {
			t.Errorf("configuring twice exits %d, want 1", code)
		}
		if state := s.State(); len(state.Runners) != 1 || strings.Join(state.Runners[0].Labels, ",") != "only" {
			t.Errorf("runners: %+v", state.Runners)
		}
		wrong := githubtest.StartRunner(t, other, "config", "remove", "--token", token)
		if code := wrong.Wait(); code != 1 {
			t.Errorf("removal with a registration token exits %d, want 1", code)
		}
		r := githubtest.StartRunner(t, other, "config", "remove", "--token", createRegistrationToken(t, s, "remove-token"))
		if code := r.Wait(); code != 0 || len(s.State().Runners) != 0 {
			t.Errorf("removal exits %d:\n%s", code, r.Output())
		}
	})
	for name, extra := range map[string][]string{
		"unknown group": {"--runnergroup", "nope", "--name", "c"},
		"wrong place":   {"--url", s.URL + "/octo-org", "--name", "c"},
		"no address":    {"--url", "not an address", "--name", "c"},
		"long name":     {"--name", strings.Repeat("c", 65)},
	} {
		t.Run(name, func(t *testing.T) {
			if code := config(t, t.TempDir(), extra...).Wait(); code != 1 {
				t.Errorf("exits %d, want 1", code)
			}
		})
	}
	t.Run("not configured", func(t *testing.T) {
		if code := githubtest.StartRunner(t, t.TempDir(), "run").Wait(); code != 1 {
			t.Errorf("exits %d, want 1", code)
		}
	})
}

func TestRegistrationTokenExpires(t *testing.T) {
	clk := newFakeClock()
	s := githubtest.New(t, github.Options{Clock: clk})
	token := createRegistrationToken(t, s, "registration-token")
	clk.Step(time.Hour)
	r := githubtest.StartRunner(t, t.TempDir(), "config", "--url", s.URL+"/"+githubtest.Repo, "--token", token, "--name", "late")
	if code := r.Wait(); code != 1 || !strings.Contains(r.Output(), "expired") {
		t.Errorf("exit code %d:\n%s", code, r.Output())
	}
}

func TestRegistrationRefusedFault(t *testing.T) {
	s := githubtest.New(t, github.Options{Faults: control.Faults{RegistrationRefused: 1}})
	r := githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", createJITConfig(t, s, "vm-1", "x"))
	if code := r.Wait(); code != 2 {
		t.Errorf("exit code %d, want 2 (retryable):\n%s", code, r.Output())
	}
}

func TestFailingCommandAndHooks(t *testing.T) {
	s := githubtest.New(t, github.Options{})
	s.Queue(control.JobSpec{Labels: []string{"x"}, Command: "exit 3", Name: "broken"})
	r := githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", createJITConfig(t, s, "vm-1", "x"))
	if code := r.Wait(); code != 0 || !strings.Contains(r.Output(), "completed with result: Failed") {
		t.Errorf("exit code %d:\n%s", code, r.Output())
	}
	if got := s.State().Jobs[0]; got.Conclusion != "failure" {
		t.Errorf("job: %+v", got)
	}
}

// TestMatching tests which jobs are assigned to a runner, by its level, group and labels.
func TestMatching(t *testing.T) {
	opts := github.Options{
		Repos: []github.Repo{{FullName: "octo-org/octo-repo", Private: true}, {FullName: "octo-org/second"}, {FullName: "else/where", Private: true}},
		Groups: []github.Group{
			{Owner: "octo-org", Name: "picked", Visibility: "selected", Selected: []string{"octo-org/second"}},
			{Owner: "octo-org", Name: "private", Visibility: "private"},
		},
		Enterprise: "octo",
	}
	cases := map[string]struct {
		path   string
		group  int
		labels []string
		repo   string
		job    []string
		takes  bool
	}{
		"labels ignore case":           {"/repos/octo-org/octo-repo", 1, []string{"GPU", "Linux"}, "octo-org/octo-repo", []string{"gpu", "LINUX"}, true},
		"a superset serves":            {"/repos/octo-org/octo-repo", 1, []string{"a", "b", "c"}, "octo-org/octo-repo", []string{"b"}, true},
		"a label is missing":           {"/repos/octo-org/octo-repo", 1, []string{"a"}, "octo-org/octo-repo", []string{"a", "b"}, false},
		"JIT has no default labels":    {"/repos/octo-org/octo-repo", 1, []string{"a"}, "octo-org/octo-repo", []string{"self-hosted", "a"}, false},
		"another repository":           {"/repos/octo-org/octo-repo", 1, []string{"a"}, "octo-org/second", []string{"a"}, false},
		"organisation serves its own":  {"/orgs/octo-org", 1, []string{"a"}, "octo-org/second", []string{"a"}, true},
		"organisation serves no other": {"/orgs/octo-org", 1, []string{"a"}, "else/where", []string{"a"}, false},
		"enterprise serves all":        {"/enterprises/octo", 1, []string{"a"}, "else/where", []string{"a"}, true},
		"group picks the repository":   {"/orgs/octo-org", 2, []string{"a"}, "octo-org/second", []string{"a"}, true},
		"group excludes it":            {"/orgs/octo-org", 2, []string{"a"}, "octo-org/octo-repo", []string{"a"}, false},
		"private group, private":       {"/orgs/octo-org", 3, []string{"a"}, "octo-org/octo-repo", []string{"a"}, true},
		"private group, public":        {"/orgs/octo-org", 3, []string{"a"}, "octo-org/second", []string{"a"}, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := githubtest.New(t, opts)
			a := sendRequest(t, s, "POST", tc.path+"/actions/runners/generate-jitconfig", auth,
				map[string]any{"name": "vm", "runner_group_id": tc.group, "labels": tc.labels})
			blob, _ := a.body["encoded_jit_config"].(string)
			githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", blob)
			s.WaitUntil("the runner is online", hasIdleRunners(1))
			s.Queue(control.JobSpec{Repo: tc.repo, Labels: tc.job, Duration: time.Hour})
			// Jobs are assigned when they are queued, so the assignment is already decided.
			if got := s.State().Runners[0].JobID != 0; got != tc.takes {
				t.Errorf("job assigned: %v, want %v", got, tc.takes)
			}
		})
	}
}

// TestAnyRunnerMayTakeAnyJob tests that with some seeds the last runner has the first job.
func TestAnyRunnerMayTakeAnyJob(t *testing.T) {
	winners := map[string]bool{}
	for seed := range uint64(8) {
		s := githubtest.New(t, github.Options{Seed: seed})
		for _, name := range []string{"a", "b"} {
			githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", createJITConfig(t, s, name, "x"))
		}
		s.WaitUntil("two runners are online", hasIdleRunners(2))
		s.Queue(control.JobSpec{Labels: []string{"x"}, Duration: time.Millisecond})
		winners[s.WaitUntil("the job ran", hasCompletedJobs(1)).Jobs[0].RunnerName] = true
	}
	if len(winners) != 2 {
		t.Errorf("eight seeds gave the job to %v only", winners)
	}
}

// openSession opens the session of a runner, so that the test can make the calls of the runner.
func openSession(t *testing.T, s *githubtest.Server, blob string) (bearer, id string) {
	t.Helper()
	config, err := protocol.DecodeJIT(blob)
	requireNoError(t, err)
	key, err := config.RSA.DecodeKey()
	requireNoError(t, err)
	client := config.Credentials.Data.ClientID
	assertion, err := protocol.Sign(key, protocol.Claims{Subject: client, IssuedAt: "0", ExpiresAt: "0"})
	requireNoError(t, err)
	a := sendRequest(t, s, "POST", protocol.PathToken, "", protocol.TokenRequest{ClientID: client, Assertion: assertion})
	token, _ := a.body["accessToken"].(string)
	a = sendRequest(t, s, "POST", protocol.PathSessions, "Bearer "+token, nil)
	id, _ = a.body["sessionId"].(string)
	if id == "" {
		t.Fatalf("open session: %d %s", a.code, a.text)
	}
	return "Bearer " + token, id
}

func TestUnclaimedJobReturnsToTheQueue(t *testing.T) {
	clk := newFakeClock()
	s := githubtest.New(t, github.Options{Clock: clk, OfflineAfter: 10 * time.Minute})
	openSession(t, s, createJITConfig(t, s, "sleepy", "x")) // online, but never polls for a job
	job := s.Queue(control.JobSpec{Labels: []string{"x"}})[0]
	if got := s.State().Runners[0].JobID; got != job.ID {
		t.Fatalf("assigned job: %d", got)
	}
	clk.Step(59 * time.Second)
	if got := s.State().Jobs[0]; got.Requeues != 0 || got.Status != "queued" {
		t.Fatalf("before 60 s: %+v", got)
	}
	clk.Step(time.Second)
	if got := s.State().Jobs[0]; got.Requeues != 1 || got.Status != "queued" {
		t.Fatalf("after 60 s: %+v", got)
	}
}

func TestLostRunnerFailsItsJob(t *testing.T) {
	clk := newFakeClock()
	s := githubtest.New(t, github.Options{Clock: clk})
	bearer, id := openSession(t, s, createJITConfig(t, s, "doomed", "x"))
	job := s.Queue(control.JobSpec{Labels: []string{"x"}})[0]
	path := protocol.PathJobs + "/" + strconv.FormatInt(job.ID, 10)
	if a := sendRequest(t, s, "POST", path+"/acquire", bearer, protocol.JobRequest{SessionID: id}); a.code != 200 {
		t.Fatalf("acquire: %d %s", a.code, a.text)
	}
	clk.Step(5 * time.Minute)
	state := s.State()
	if r := state.Runners[0]; r.Online || !r.Busy {
		t.Errorf("a silent runner: %+v", r)
	}
	clk.Step(5 * time.Minute)
	state = s.State()
	if got := state.Jobs[0]; got.Conclusion != "failure" || len(state.Runners) != 0 {
		t.Errorf("after ten minutes: %+v %+v", got, state.Runners)
	}
	if a := sendRequest(t, s, "POST", path+"/finish", bearer, protocol.JobRequest{SessionID: id, Result: "succeeded"}); a.code != 401 {
		t.Errorf("a late finish: %d %s", a.code, a.text)
	}
}

func TestUnusedRunnersAndJobsExpire(t *testing.T) {
	clk := newFakeClock()
	s := githubtest.New(t, github.Options{Clock: clk})
	createJITConfig(t, s, "never-came", "x")
	s.Queue(control.JobSpec{Labels: []string{"nobody"}})
	clk.Step(24*time.Hour - time.Second)
	if state := s.State(); len(state.Runners) != 1 || state.Jobs[0].Status != "queued" {
		t.Errorf("within the day: %+v", state)
	}
	clk.Step(time.Second)
	state := s.State()
	if len(state.Runners) != 0 || state.Jobs[0].Conclusion != "failure" {
		t.Errorf("after the day: %+v", state)
	}
}

func TestCancelRunningJob(t *testing.T) {
	s := githubtest.New(t, github.Options{})
	bearer, id := openSession(t, s, createJITConfig(t, s, "vm", "x"))
	job := s.Queue(control.JobSpec{Labels: []string{"x"}})[0]
	path := protocol.PathJobs + "/" + strconv.FormatInt(job.ID, 10)
	sendRequest(t, s, "POST", path+"/acquire", bearer, protocol.JobRequest{SessionID: id})
	if a := sendRequest(t, s, "POST", path+"/renew", bearer, protocol.JobRequest{SessionID: id}); a.body["cancelled"] != false {
		t.Errorf("renew: %s", a.text)
	}
	requireNoError(t, s.Cancel(job.ID))
	if a := sendRequest(t, s, "POST", path+"/renew", bearer, protocol.JobRequest{SessionID: id}); a.body["cancelled"] != true {
		t.Errorf("renew after cancel: %s", a.text)
	}
	for _, invalid := range []protocol.JobRequest{{SessionID: "other", Result: "canceled"}, {SessionID: id, Result: "fine"}} {
		if a := sendRequest(t, s, "POST", path+"/finish", bearer, invalid); a.code < 400 {
			t.Errorf("finish with %+v: %d", invalid, a.code)
		}
	}
	if a := sendRequest(t, s, "POST", path+"/finish", bearer, protocol.JobRequest{SessionID: id, Result: "canceled"}); a.code != 200 {
		t.Errorf("finish: %d %s", a.code, a.text)
	}
	if got := s.State().Jobs[0].Conclusion; got != "cancelled" {
		t.Errorf("conclusion %q", got)
	}
}

func TestQueueRefusals(t *testing.T) {
	s := githubtest.New(t, github.Options{})
	for _, invalid := range []control.JobSpec{
		{Repo: "no/where", Labels: []string{"x"}},
		{Repo: githubtest.Repo},
		{Repo: githubtest.Repo, Labels: []string{""}},
		{Repo: githubtest.Repo, Labels: []string{"x"}, Count: 10001},
		{Repo: githubtest.Repo, Labels: []string{"x"}, Duration: -1},
	} {
		if _, err := s.Server.Queue(invalid); err == nil {
			t.Errorf("%+v was queued", invalid)
		}
	}
	if err := errors.Join(s.Approve(1), s.Cancel(1)); err == nil {
		t.Error("an unknown job was approved or cancelled")
	}
}

func TestBlobShape(t *testing.T) {
	s := githubtest.New(t, github.Options{})
	config, err := protocol.DecodeJIT(createJITConfig(t, s, "vm-1", "x"))
	requireNoError(t, err)
	if r := config.Runner; r.Ephemeral != "True" || r.GitHubURL != s.URL+"/"+githubtest.Repo || r.ServerURL != s.URL || r.AgentName != "vm-1" {
		t.Errorf(".runner: %+v", r)
	}
	text, err := json.Marshal(config)
	requireNoError(t, err)
	if strings.Contains(string(text), githubtest.PAT) {
		t.Error("the blob carries the caller's token")
	}
}
