// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	sim "github.com/hyperfleet/hyperfleet/sim/buildkite"
	"github.com/hyperfleet/hyperfleet/sim/buildkite/buildkitetest"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/buildkite"
)

const unknownJob = "00000000-0000-4000-8000-000000000000"

// Validate reports invalid settings and the fix before a machine is created.
func TestValidateNamesTheFix(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		sim    sim.Options
		config func(*buildkite.Config)
		before func(*buildkitetest.Server)
		kind   workload.Kind
		reason string
		says   string
	}{
		"all is well":    {},
		"unknown token":  {config: func(c *buildkite.Config) { c.Token = "bkct_nope" }, kind: workload.Rejected, reason: buildkite.ReasonCredentials, says: "agent token"},
		"no such queue":  {config: func(c *buildkite.Config) { c.Queue = "gpu" }, kind: workload.Rejected, reason: buildkite.ReasonQueue, says: "gpu"},
		"other org":      {config: func(c *buildkite.Config) { c.Organization = "rival" }, kind: workload.Rejected, reason: buildkite.ReasonOrganization, says: "acme"},
		"org in capital": {config: func(c *buildkite.Config) { c.Organization = "ACME" }},
		"no capacity for another stack": {
			sim: sim.Options{StackLimit: 1}, before: func(s *buildkitetest.Server) { registerStack(s, "somebody-elses") },
			kind: workload.Rejected, reason: buildkite.ReasonStack, says: "Stack limit exceeded",
		},
		"rate limit reached": {
			sim: sim.Options{Faults: control.Faults{RateLimit: 1, RetryAfter: 7 * time.Second}}, kind: workload.RateLimited, reason: buildkite.ReasonRateLimited,
		},
		"outage": {sim: sim.Options{Faults: control.Faults{ServerError: 1}}, says: "status 502"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			server := buildkitetest.New(t, tc.sim)
			if tc.before != nil {
				tc.before(server)
			}

			config := newConfig(server)
			if tc.config != nil {
				tc.config(&config)
			}

			err := openProvider(t, config).Validate(t.Context())
			if (err == nil) != (tc.reason == "" && tc.says == "") || workload.KindOf(err) != tc.kind || getReason(err) != tc.reason {
				t.Fatalf("Validate() = %v (kind %s, reason %s)", err, workload.KindOf(err), getReason(err))
			}

			if err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %q does not contain %q", err, tc.says)
			}

			if err != nil && strings.Contains(err.Error(), "bkct_") {
				t.Errorf("error %q contains the token", err)
			}

			if limited, ok := errors.AsType[*workload.Error](err); ok && tc.kind == workload.RateLimited && limited.RetryAfter != 7*time.Second {
				t.Errorf("RetryAfter = %s, want the server's value", limited.RetryAfter)
			}
		})
	}
}

func registerStack(server *buildkitetest.Server, key string) {
	body := fmt.Sprintf(`{"key":%q,"type":"custom","queue_key":"default","metadata":{}}`, key)

	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, server.Endpoint+"/stacks/register", strings.NewReader(body))
	if err != nil {
		panic(err)
	}

	req.Header.Set("Authorization", "Token "+buildkitetest.Token)
	req.Header.Set("Content-Type", "application/json")

	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		panic(err)
	}

	_ = resp.Body.Close()
}

// An outage is retried, with a bounded number of attempts.
func TestOutagesAreRetried(t *testing.T) {
	t.Parallel()

	var calls atomic.Int32

	fails := int32(2)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) <= fails {
			w.WriteHeader(http.StatusServiceUnavailable)

			return
		}

		_, _ = w.Write([]byte(`{"organization":{"slug":"acme"}}`))
	}))
	t.Cleanup(server.Close)

	config := buildkite.Config{Organization: "acme", Queue: "default", Stack: "s", Token: "t", Endpoint: server.URL}
	if err := openProvider(t, config).Validate(t.Context()); err != nil {
		t.Errorf("Validate() = %v after %d calls", err, calls.Load())
	}

	calls.Store(-100)

	if err := openProvider(t, config).Validate(t.Context()); err == nil || calls.Load() != -97 {
		t.Errorf("Validate() = %v after %d calls, want 3", err, calls.Load()+100)
	}
}

// The token is sent only to the configured host and is part of no error.
func TestTokenIsSentOnlyToConfiguredHost(t *testing.T) {
	t.Parallel()

	var leaked atomic.Bool

	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { leaked.Store(true) }))
	t.Cleanup(other.Close)

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stacks/register" {
			w.Header().Set("Location", other.URL)
			w.WriteHeader(http.StatusTemporaryRedirect)

			return
		}

		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = fmt.Fprintf(w, `{"message":"odd token %s and bkjat_abc.def-ghi"}`, r.Header.Get("Authorization"))
	}))
	t.Cleanup(server.Close)

	config := buildkite.Config{Organization: "acme", Queue: "default", Stack: "s", Token: "plain-old-token-0123", Endpoint: server.URL}

	err := openProvider(t, config).Validate(t.Context())
	if err == nil || leaked.Load() {
		t.Errorf("Validate() = %v; the redirect was followed: %v", err, leaked.Load())
	}

	for _, text := range []string{"odd Token plain-old-token-0123", "bkjat_abc.def-ghi", "https://u:p@host/x"} {
		if got := buildkite.Redact("plain-old-token-0123", text); strings.Contains(got, "plain") || strings.Contains(got, "def") || strings.Contains(got, "u:p") {
			t.Errorf("Redact(%q) = %q", text, got)
		}
	}
}

// All pages are read. The result contains no reserved jobs and no jobs of other queues.
func TestJobsReadsAllPages(t *testing.T) {
	t.Parallel()

	server := buildkitetest.New(t, sim.Options{Queues: []string{"default", "mac"}})
	server.Queue(control.JobSpec{Count: 1500, Name: "unit tests", Labels: []string{"queue=default", "os=linux"}})
	server.Queue(control.JobSpec{Count: 3, Labels: []string{"queue=mac"}})

	provider := openProvider(t, newConfig(server))

	jobs := pollJobs(t, provider)
	if len(jobs) != 1500 {
		t.Fatalf("%d jobs are listed, want 1500", len(jobs))
	}

	first := jobs[0]
	want := workload.Job{
		Platform: v1alpha1.WorkloadBuildkite, ID: first.ID, Name: "unit-tests-1", Repository: "acme/app", Organization: "acme", RunID: "1",
		Workflow: "app", URL: "https://buildkite.com/acme/app/builds/1#" + first.ID, Labels: []string{"queue=default", "os=linux"},
		Queue: "default", State: v1alpha1.JobQueued, QueuedAt: first.QueuedAt,
	}

	if diff := cmp.Diff(want, first); diff != "" || first.QueuedAt == nil {
		t.Errorf("first job (-want +got):\n%s", diff)
	}
}

// The jobs of a paused queue do not start, and the error names the reason.
func TestAPausedQueue(t *testing.T) {
	t.Parallel()

	clk := clocktesting.NewFakeClock(time.Now())
	server := buildkitetest.New(t, sim.Options{})
	queued := server.Queue(control.JobSpec{})[0]
	server.SetPaused(buildkitetest.Queue, true)

	provider, err := buildkite.NewWithClock(newConfig(server), clk)
	if err != nil {
		t.Fatal(err)
	}

	poller, _ := provider.(workload.Poller)

	jobs, err := poller.ListJobs(t.Context(), nil)
	if getReason(err) != buildkite.ReasonQueuePaused || len(jobs) != 1 || jobs[0].State != v1alpha1.JobWaiting {
		t.Errorf("Jobs() = %+v, %v, want one that waits, and why", jobs, err)
	}

	want := newRequest("vm-1", workload.Job{ID: queued.Key})
	if _, err := provider.IssueCredential(t.Context(), want); getReason(err) != buildkite.ReasonQueuePaused || !workload.Is(err, workload.RateLimited) {
		t.Errorf("Issue() = %v, want reason %s", err, buildkite.ReasonQueuePaused)
	}

	if state, _ := server.JobLog(queued.Key); state != "scheduled" {
		t.Errorf("the job is %s though its queue is paused", state)
	}

	server.SetPaused(buildkitetest.Queue, false)
	clk.Step(time.Minute)

	if _, err := provider.IssueCredential(t.Context(), want); err != nil {
		t.Errorf("Issue() on the resumed queue = %v", err)
	}
}

// A restarted operator does not know its runners by name and finds them by their ids.
func TestRunnersAfterARestart(t *testing.T) {
	t.Parallel()

	server := buildkitetest.New(t, sim.Options{})
	job := server.Queue(control.JobSpec{Command: "sleep 5"})[0]
	credential := issueCredential(t, openProvider(t, newConfig(server)), "vm-1", job)
	startAgent(t, server, credential)

	restarted := openProvider(t, newConfig(server))
	if _, err := restarted.FindRunner(t.Context(), "vm-1", 0); !workload.Is(err, workload.NotFound) {
		t.Errorf("Find() by name = %v, want kind NotFound", err)
	}

	if runner, err := restarted.FindRunner(t.Context(), credential.RunnerID, 0); err != nil || !runner.Busy {
		t.Errorf("Find() by id = %+v, %v, want a busy runner", runner, err)
	}

	if err := restarted.Deregister(t.Context(), credential.RunnerID); !workload.Is(err, workload.RunnerBusy) {
		t.Errorf("Deregister() = %v, want kind RunnerBusy", err)
	}
}

// Deregister never fails a job: a job that no agent started returns to its queue.
func TestDeregisterLeavesTheJob(t *testing.T) {
	t.Parallel()

	server := buildkitetest.New(t, sim.Options{})
	provider := openProvider(t, newConfig(server))
	job := server.Queue(control.JobSpec{})[0]
	issueCredential(t, provider, "vm-1", job)

	for action, id := range map[string]string{"reserved": job.Key, "unknown": unknownJob} {
		if err := provider.Deregister(t.Context(), id); err != nil {
			t.Errorf("Deregister() of a job that is %s = %v", action, err)
		}
	}

	if state, _ := server.JobLog(job.Key); state != "reserved" {
		t.Errorf("the job is %s, want it left reserved", state)
	}

	if err := provider.Deregister(t.Context(), "17"); !workload.Is(err, workload.Rejected) {
		t.Errorf("Deregister() of an id that is none = %v", err)
	}
}

func TestJob(t *testing.T) {
	t.Parallel()

	server := buildkitetest.New(t, sim.Options{})
	provider := openProvider(t, newConfig(server))
	job := server.Queue(control.JobSpec{})[0]
	state := func() v1alpha1.JobState {
		got, err := provider.GetJob(t.Context(), "acme/app", job.Key)
		if err != nil || got.ID != job.Key || got.Repository != "acme/app" || got.Organization != "acme" {
			t.Errorf("Job() = %+v, %v", got, err)
		}

		return got.State
	}

	if got := state(); got != v1alpha1.JobQueued {
		t.Errorf("a scheduled job is %s", got)
	}

	credential := issueCredential(t, provider, "vm-1", job)

	if got := state(); got != v1alpha1.JobQueued {
		t.Errorf("a reserved job is %s", got)
	}

	if code := server.StartAgent(t, job.Key, credential.RunnerToken, nil).Wait(); code != 0 {
		t.Fatalf("the agent ended with %d", code)
	}

	if got := state(); got != v1alpha1.JobCompleted {
		t.Errorf("a finished job is %s", got)
	}

	if _, err := provider.GetJob(t.Context(), "acme/app", unknownJob); !workload.Is(err, workload.NotFound) || getReason(err) != workload.ReasonJobDeleted {
		t.Errorf("Job() of an unknown job = %v", err)
	}

	if _, err := provider.GetJob(t.Context(), "acme/app", "42"); !workload.Is(err, workload.Rejected) {
		t.Errorf("Job() of an id that is none = %v", err)
	}
}

// A stack that was deleted at Buildkite is registered again by any call.
func TestDeletedStackIsRegisteredAgain(t *testing.T) {
	t.Parallel()

	server := buildkitetest.New(t, sim.Options{})
	provider := openProvider(t, newConfig(server))
	job := server.Queue(control.JobSpec{})[0]

	if err := provider.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}

	server.DeregisterStacks()

	if jobs := pollJobs(t, provider); len(jobs) != 1 {
		t.Errorf("%d jobs are listed", len(jobs))
	}

	server.DeregisterStacks()
	issueCredential(t, provider, "vm-1", job)
}

// Every call reports a revoked token.
func TestARevokedToken(t *testing.T) {
	t.Parallel()

	server := buildkitetest.New(t, sim.Options{})
	provider := openProvider(t, newConfig(server))
	job := server.Queue(control.JobSpec{})[0]
	issueCredential(t, provider, "vm-1", job)
	server.RevokeToken(buildkitetest.Token)

	poller, _ := provider.(workload.Poller)
	calls := map[string]func() error{
		"Validate": func() error { return provider.Validate(t.Context()) },
		"Jobs":     func() error { _, err := poller.ListJobs(t.Context(), nil); return err },
		"Job":      func() error { _, err := provider.GetJob(t.Context(), "acme/app", job.Key); return err },
		"Issue": func() error {
			_, err := provider.IssueCredential(t.Context(), newRequest("vm-1", workload.Job{ID: job.Key}))
			return err
		},
		"Find":       func() error { _, err := provider.FindRunner(t.Context(), "vm-1", 0); return err },
		"Runners":    func() error { _, err := provider.ListRunners(t.Context(), ""); return err },
		"Deregister": func() error { return provider.Deregister(t.Context(), job.Key) },
	}
	for name, call := range calls {
		// Recently read states may still be returned.
		if err := call(); err != nil && getReason(err) != buildkite.ReasonCredentials || err == nil && name != "Runners" {
			t.Errorf("%s() = %v, want reason %s", name, err, buildkite.ReasonCredentials)
		}
	}
}

// Concurrent requests for many runners need few calls.
func TestFindIsShared(t *testing.T) {
	t.Parallel()

	server := buildkitetest.New(t, sim.Options{NoLimits: true})
	provider := openProvider(t, newConfig(server))
	jobs := server.Queue(control.JobSpec{Count: 40})

	for i, job := range jobs {
		issueCredential(t, provider, fmt.Sprintf("vm-%d", i), job)
	}

	before := server.State().Requests["getStates"]

	for i := range jobs {
		if _, err := provider.FindRunner(t.Context(), fmt.Sprintf("vm-%d", i), time.Minute); err != nil {
			t.Fatal(err)
		}
	}

	if calls := server.State().Requests["getStates"] - before; calls != 1 {
		t.Errorf("%d calls for 40 runners, want 1", calls)
	}
}

// Calls end when their context ends or their timeout expires.
func TestCallsEnd(t *testing.T) {
	t.Parallel()

	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(release) })

	provider := openProvider(t, buildkite.Config{
		Organization: "acme", Queue: "default", Stack: "s", Token: "t", Endpoint: server.URL, Timeout: 20 * time.Millisecond,
	})
	if err := provider.Validate(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Validate() = %v, want a timeout", err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	if err := provider.Validate(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Validate() = %v, want it cancelled", err)
	}
}
