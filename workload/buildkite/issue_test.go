// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	sim "github.com/hyperfleet/hyperfleet/sim/buildkite"
	"github.com/hyperfleet/hyperfleet/sim/buildkite/buildkitetest"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/buildkite"
)

// An unavailable job is an error that names the reason. A job that the runner already has is kept.
func TestIssueOfUnavailableJob(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		prepare func(t *testing.T, s *buildkitetest.Server, p workload.Provider, job control.Job)
		request func(*workload.RunnerRequest)
		kind    workload.Kind
		reason  string
	}{
		"cancelled": {
			prepare: func(t *testing.T, s *buildkitetest.Server, _ workload.Provider, job control.Job) {
				t.Helper()

				if err := s.Cancel(job.ID); err != nil {
					t.Fatal(err)
				}
			},
			kind: workload.NotFound, reason: buildkite.ReasonJobGone,
		},
		"unknown":     {request: func(r *workload.RunnerRequest) { r.Job.ID = unknownJob }, kind: workload.NotFound, reason: buildkite.ReasonJobGone},
		"no UUID":     {request: func(r *workload.RunnerRequest) { r.Job.ID = "../.." }, kind: workload.Rejected, reason: buildkite.ReasonRequest},
		"no job":      {request: func(r *workload.RunnerRequest) { r.Job = nil }, kind: workload.Rejected, reason: buildkite.ReasonRequest},
		"no name":     {request: func(r *workload.RunnerRequest) { r.Name = "" }, kind: workload.Rejected, reason: buildkite.ReasonRequest},
		"in capitals": {request: func(r *workload.RunnerRequest) { r.Job.ID = strings.ToUpper(r.Job.ID) }},
		"reserved by another stack": {
			prepare: func(t *testing.T, s *buildkitetest.Server, _ workload.Provider, job control.Job) {
				t.Helper()

				config := newConfig(s)
				config.Stack = "somebody-elses"
				issueCredential(t, openProvider(t, config), "their-vm", job)
			},
			kind: workload.NotFound, reason: buildkite.ReasonJobGone,
		},
		"run by another runner": {
			prepare: func(t *testing.T, s *buildkitetest.Server, p workload.Provider, job control.Job) {
				t.Helper()
				startAgent(t, s, issueCredential(t, p, "vm-0", job))
			},
			kind: workload.NotFound, reason: buildkite.ReasonJobGone,
		},
		"run by this runner": {
			prepare: func(t *testing.T, s *buildkitetest.Server, p workload.Provider, job control.Job) {
				t.Helper()
				startAgent(t, s, issueCredential(t, p, "vm-1", job))
			},
			kind: workload.Conflict, reason: workload.ReasonRunnerExists,
		},
		"run by this runner, known only from the ledger": {
			prepare: func(t *testing.T, s *buildkitetest.Server, _ workload.Provider, job control.Job) {
				t.Helper()
				startAgent(t, s, issueCredential(t, openProvider(t, newConfig(s)), "vm-1", job))
			},
			request: func(r *workload.RunnerRequest) { r.Job.RunnerName = "vm-1" },
			kind:    workload.Conflict, reason: workload.ReasonRunnerExists,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			server := buildkitetest.New(t, sim.Options{})
			provider := openProvider(t, newConfig(server))
			job := server.Queue(control.JobSpec{Command: "sleep 5"})[0]

			if tc.prepare != nil {
				tc.prepare(t, server, provider, job)
			}

			req := newRequest("vm-1", workload.Job{ID: job.Key})
			if tc.request != nil {
				tc.request(&req)
			}

			got, err := provider.IssueCredential(t.Context(), req)
			if workload.KindOf(err) != tc.kind || getReason(err) != tc.reason {
				t.Errorf("Issue() = %v (kind %s, reason %s)", err, workload.KindOf(err), getReason(err))
			}

			if (err == nil) != (got.RunnerToken != "") {
				t.Errorf("error %v and credential do not fit", err)
			}
		})
	}
}

func issueCredential(t *testing.T, provider workload.Provider, name string, job control.Job) workload.Credential {
	t.Helper()

	out, err := provider.IssueCredential(t.Context(), newRequest(name, workload.Job{ID: job.Key}))
	if err != nil {
		t.Fatal(err)
	}

	return out
}

// startAgent starts the agent of a credential and waits until it runs the job.
func startAgent(t *testing.T, server *buildkitetest.Server, credential workload.Credential) *buildkitetest.Agent {
	t.Helper()

	agent := server.StartAgent(t, credential.JobID, credential.RunnerToken, nil)
	server.WaitUntil("the job runs", func(control.State) bool {
		state, _ := server.JobLog(credential.JobID)

		return state == "running"
	})

	return agent
}

// A repeated request of the same runner returns a token for the same job, also after a restart of
// the operator, because the reservation belongs to the stack.
func TestIssueAgain(t *testing.T) {
	t.Parallel()

	server := buildkitetest.New(t, sim.Options{})
	provider := openProvider(t, newConfig(server))
	job := server.Queue(control.JobSpec{})[0]
	first := issueCredential(t, provider, "vm-1", job)

	for action, again := range map[string]workload.Provider{"same process": provider, "after a restart": openProvider(t, newConfig(server))} {
		second := issueCredential(t, again, "vm-1", job)
		if second.JobID != first.JobID || second.RunnerToken == "" {
			t.Errorf("%s: job %s, want %s", action, second.JobID, first.JobID)
		}
	}

	if agent := server.StartAgent(t, job.Key, first.RunnerToken, nil); agent.Wait() != 0 {
		t.Errorf("the first token is no longer valid: %s", agent.Output())
	}
}

// The reservation and the token last for the request's timeout, at most one hour. When they expire,
// the job is back in its queue and the token is invalid.
func TestReservationsLapse(t *testing.T) {
	t.Parallel()

	clk := clocktesting.NewFakeClock(time.Now())
	server := buildkitetest.New(t, sim.Options{Clock: clk, NoLimits: true})
	provider := openProvider(t, newConfig(server))
	job := server.Queue(control.JobSpec{})[0]

	for timeout, want := range map[time.Duration]time.Duration{
		0: 15 * time.Minute, 5 * time.Minute: 5 * time.Minute, 3 * time.Hour: time.Hour, time.Millisecond: time.Second,
	} {
		got, err := provider.IssueCredential(t.Context(), workload.RunnerRequest{Name: "vm-1", Job: &workload.Job{ID: job.Key}, Timeout: timeout})
		if err != nil {
			t.Fatal(err)
		}

		if life := got.ExpiresAt.Sub(clk.Now()); life > want || life < want-time.Second {
			t.Errorf("a request of %s lasts %s, want %s", timeout, life, want)
		}
	}

	credential := issueCredential(t, provider, "vm-1", job) // for 5 minutes

	clk.Step(5*time.Minute + time.Second)

	if jobs := pollJobs(t, provider); len(jobs) != 1 || jobs[0].ID != job.Key {
		t.Errorf("jobs after the reservation expired: %+v", jobs)
	}

	if agent := server.StartAgent(t, job.Key, credential.RunnerToken, nil); agent.Wait() != 1 || !strings.Contains(agent.Output(), "401") {
		t.Errorf("an expired token still registers an agent: %s", agent.Output())
	}

	if runner, err := provider.FindRunner(t.Context(), "vm-1", 0); err != nil || runner.Online {
		t.Errorf("Find() = %+v, %v, want an offline runner", runner, err)
	}
}

// A second runner for a job replaces the first. The first runner's end must not wait for the second
// runner's job.
func TestASecondRunnerForAJob(t *testing.T) {
	t.Parallel()

	server := buildkitetest.New(t, sim.Options{})
	provider := openProvider(t, newConfig(server))
	job := server.Queue(control.JobSpec{Command: "sleep 5"})[0]

	issueCredential(t, provider, "vm-1", job)
	startAgent(t, server, issueCredential(t, provider, "vm-2", job))

	if _, err := provider.FindRunner(t.Context(), "vm-1", 0); !workload.Is(err, workload.NotFound) {
		t.Errorf("Find() of the first = %v, want kind NotFound", err)
	}

	runners, err := provider.ListRunners(t.Context(), "vm-")
	if diff := cmp.Diff([]workload.Runner{{ID: job.Key, Name: "vm-2", Online: true, Busy: true}}, runners); err != nil || diff != "" {
		t.Errorf("Runners() = %v (-want +got):\n%s", err, diff)
	}

	if runners, err := provider.ListRunners(t.Context(), "other-"); err != nil || len(runners) != 0 {
		t.Errorf("Runners() of another prefix = %+v, %v", runners, err)
	}
}

// slowTransport delays every call, as a network does.
type slowTransport struct{ next http.RoundTripper }

func (s slowTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(20 * time.Millisecond)

	return s.next.RoundTrip(r)
}

// gatheringTransport delays the first call of each kind until all other requests of a burst are pending.
type gatheringTransport struct {
	next           http.RoundTripper
	burstSize      int
	countPending   func() [2]int // pending reservations and tokens
	reserve, token sync.Once
}

func (g *gatheringTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	switch {
	case strings.HasSuffix(r.URL.Path, "/batch-reserve"):
		g.reserve.Do(func() { g.waitForBurst(r, 0) })
	case strings.HasSuffix(r.URL.Path, "/job-acquisition-tokens"):
		g.token.Do(func() { g.waitForBurst(r, 1) })
	}

	return g.next.RoundTrip(r)
}

// waitForBurst waits until all requests that are not part of the call are pending.
func (g *gatheringTransport) waitForBurst(r *http.Request, kind int) {
	requested := 0

	if body, err := r.GetBody(); err == nil {
		text, _ := io.ReadAll(body)
		requested = len(regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`).FindAll(text, -1))
	}

	for requested+g.countPending()[kind] < g.burstSize && r.Context().Err() == nil {
		time.Sleep(10 * time.Millisecond)
	}
}

// A burst of machines needs few calls, because Buildkite allows ten calls per second.
func TestBurstIsReservedInBatches(t *testing.T) {
	t.Parallel()

	const burst = 60

	var provider workload.Provider

	server := buildkitetest.New(t, sim.Options{})
	config := newConfig(server)
	config.Timeout = time.Minute
	config.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
		return &gatheringTransport{next: next, burstSize: burst, countPending: func() [2]int { return buildkite.CountPending(provider) }}
	}

	// The known state of the queue does not expire.
	provider, err := buildkite.NewWithClock(config, clocktesting.NewFakeClock(time.Now()))
	if err != nil {
		t.Fatal(err)
	}

	if err := provider.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}

	pollJobs(t, provider) // reads that the queue is not paused

	var group sync.WaitGroup

	for i, job := range server.Queue(control.JobSpec{Count: burst}) {
		group.Go(func() {
			got, err := provider.IssueCredential(t.Context(), newRequest(fmt.Sprintf("vm-%d", i), workload.Job{ID: job.Key}))
			if err != nil || got.JobID != job.Key || got.RunnerToken == "" {
				t.Errorf("Issue() = job %s, %v, want job %s", got.JobID, err, job.Key)
			}
		})
	}

	group.Wait()

	requests := server.State().Requests
	if requests["batchReserve"] > 2 || requests["acquisitionTokens"] > 2 {
		t.Errorf("60 machines cost %d reservations and %d calls for tokens", requests["batchReserve"], requests["acquisitionTokens"])
	}
}

// A caller whose context ends does not cancel the requests of the others.
func TestCancelledRequestOfBurst(t *testing.T) {
	t.Parallel()

	server := buildkitetest.New(t, sim.Options{})
	config := newConfig(server)
	config.WrapTransport = func(next http.RoundTripper) http.RoundTripper { return slowTransport{next} }
	provider := openProvider(t, config)
	pollJobs(t, provider)

	var group sync.WaitGroup

	for i, job := range server.Queue(control.JobSpec{Count: 10}) {
		ctx, cancel := context.WithCancel(t.Context())
		if i%2 == 0 {
			time.AfterFunc(10*time.Millisecond, cancel)
		}

		group.Go(func() {
			defer cancel()

			_, err := provider.IssueCredential(ctx, newRequest(fmt.Sprintf("vm-%d", i), workload.Job{ID: job.Key}))
			if i%2 == 1 && err != nil || i%2 == 0 && err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("Issue() of %d = %v", i, err)
			}
		})
	}

	group.Wait()
}

// Buildkite's rate limits cause delays and no failures: each error contains the delay.
func TestRateLimits(t *testing.T) {
	t.Parallel()

	server := buildkitetest.New(t, sim.Options{Clock: clocktesting.NewFakeClock(time.Now())})
	provider := openProvider(t, newConfig(server))
	limited := 0

	for _, job := range server.Queue(control.JobSpec{Count: 30}) {
		_, err := provider.IssueCredential(t.Context(), newRequest("vm-"+job.Key[:8], workload.Job{ID: job.Key}))

		known, ok := errors.AsType[*workload.Error](err)

		switch {
		case err == nil:
		case !ok || known.Kind != workload.RateLimited || known.RetryAfter < time.Second:
			t.Fatalf("Issue() = %v, want it to wait", err)
		default:
			limited++
		}
	}

	if limited != 20 {
		t.Errorf("%d of 30 simultaneous reservations were rate-limited, want 20", limited)
	}
}

// If Buildkite issues no acquisition token, the agent token is not used instead.
func TestNoAcquisitionToken(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		code   int
		body   string
		kind   workload.Kind
		reason string
	}{
		"no such call":   {http.StatusNotFound, `{"message":"Not Found"}`, workload.Rejected, buildkite.ReasonToken},
		"not permitted":  {http.StatusForbidden, `{"message":"no"}`, workload.Rejected, buildkite.ReasonStack},
		"not issued":     {http.StatusCreated, `{"job_acquisition_tokens":[],"not_issued":["` + unknownJob + `"]}`, workload.NotFound, buildkite.ReasonJobGone},
		"of another job": {http.StatusCreated, `{"job_acquisition_tokens":[{"job_uuid":"x","job_acquisition_token":"y"}]}`, workload.NotFound, buildkite.ReasonJobGone},
		"no JSON":        {http.StatusCreated, `<html>`, "", ""},
		"an error":       {http.StatusCreated, `{"message":"Server Error"}`, "", ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case strings.HasSuffix(r.URL.Path, "/job-acquisition-tokens"):
					w.WriteHeader(tc.code)
					_, _ = w.Write([]byte(tc.body))
				case strings.HasSuffix(r.URL.Path, "/batch-reserve"):
					_, _ = w.Write([]byte(`{"reserved":["` + unknownJob + `"]}`))
				default:
					_, _ = w.Write([]byte(`{"jobs":[]}`))
				}
			}))
			t.Cleanup(server.Close)

			provider := openProvider(t, buildkite.Config{Organization: "acme", Queue: "default", Stack: "s", Token: "t", Endpoint: server.URL})

			got, err := provider.IssueCredential(t.Context(), newRequest("vm-1", workload.Job{ID: unknownJob}))
			if err == nil || workload.KindOf(err) != tc.kind || getReason(err) != tc.reason || got.RunnerToken != "" {
				t.Errorf("Issue() = %v (kind %s, reason %s)", err, workload.KindOf(err), getReason(err))
			}
		})
	}
}
