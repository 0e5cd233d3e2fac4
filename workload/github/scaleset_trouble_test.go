// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	sim "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/test/timing"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

func newQuickPollOptions() sim.Options { return sim.Options{PollTimeout: 50 * time.Millisecond} }

// runJob issues a runner, which runs one job.
func runJob(t *testing.T, p workload.Provider, name string) {
	t.Helper()

	credential, err := p.IssueCredential(t.Context(), newSetRequest(name))
	if err != nil {
		t.Fatalf("Issue: %v", err)
	}

	runner := githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", credential.JITConfig)
	if code := runner.Wait(); code != 0 {
		t.Fatalf("runner %s ended with %d: %s", name, code, runner.Output())
	}
}

func TestScaleSetKeepsToCapacity(t *testing.T) {
	t.Parallel()

	for name, offer := range map[string]bool{"assigned at once": false, "offered and acquired": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			options := newQuickPollOptions()
			options.ScaleSets.OfferJobs = offer
			server := githubtest.New(t, options)
			p, jobs := newTestProvider(t, newSetConfig(server)), newJobLedger(2)
			startStream(t, p, jobs)
			timing.WaitUntil(t, "the listener is connected", func() bool { return server.Capacity(setName) == 2 })
			queueJobs(server, 5)
			timing.WaitUntil(t, "two jobs are reported", func() bool { return len(jobs.listJobs(v1alpha1.JobQueued)) == 2 })
			// After several polls, there are still two jobs.
			polls := server.State().Requests["scaleset message"]
			server.WaitUntil("three polls are over", func(s control.State) bool { return s.Requests["scaleset message"] >= polls+3 })

			if got := len(jobs.listJobs(v1alpha1.JobQueued)); got != 2 {
				t.Fatalf("%d jobs are waiting, the capacity is 2", got)
			}

			runJob(t, p, "vm-1")
			timing.WaitUntil(t, "the next job is reported", func() bool {
				return len(jobs.listJobs(v1alpha1.JobQueued)) == 2 && len(jobs.listJobs(v1alpha1.JobCompleted)) == 1
			})
			jobs.update(func() { jobs.capacity = 10 })
			timing.WaitUntil(t, "all jobs are reported", func() bool { return len(jobs.listJobs(v1alpha1.JobQueued)) == 4 })
		})
	}
}

// A message is acknowledged only after the caller has handled it.
func TestScaleSetAcknowledgesAfterTheCaller(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, newQuickPollOptions())
	p, jobs := newTestProvider(t, newSetConfig(server)), newJobLedger(5)
	stop := startStream(t, p, jobs)

	timing.WaitUntil(t, "the listener is connected", func() bool { return server.Capacity(setName) == 5 })
	jobs.update(func() { jobs.fail = errors.New("the ledger is unavailable") })
	queueJobs(server, 1)
	timing.WaitUntil(t, "the caller was called", func() bool { return jobs.countCalls() > 1 })

	if err := stop(); err == nil || !strings.Contains(err.Error(), "the ledger is unavailable") {
		t.Errorf("Stream = %v, want the caller's error", err)
	}

	if got := server.State().Requests["scaleset acknowledge"]; got != 0 {
		t.Fatalf("%d unhandled messages were acknowledged", got)
	}

	jobs.update(func() { jobs.fail = nil })
	startStream(t, p, jobs)
	timing.WaitUntil(t, "the message was delivered again", func() bool { return len(jobs.listJobs(v1alpha1.JobQueued)) == 1 })
	server.WaitUntil("it is acknowledged", func(s control.State) bool { return s.Requests["scaleset acknowledge"] == 1 })
}

func (b *jobLedger) countCalls() int {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.calls
}

// Jobs are queued and completed while there is no listener.
func TestScaleSetRestart(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, newQuickPollOptions())
	jobs := newJobLedger(200)
	first := newTestProvider(t, newSetConfig(server))
	stop := startStream(t, first, jobs)

	queueJobs(server, 2)
	timing.WaitUntil(t, "both jobs are reported", func() bool { return len(jobs.listJobs(v1alpha1.JobQueued)) == 2 })

	_ = stop()

	runJob(t, first, "vm-1")
	queueJobs(server, 120)

	second := newTestProvider(t, newSetConfig(server))
	startStream(t, second, jobs)
	timing.WaitUntil(t, "all jobs are reported", func() bool {
		return len(jobs.listJobs(v1alpha1.JobQueued)) == 121 && len(jobs.listJobs(v1alpha1.JobCompleted)) == 1
	})

	for _, job := range jobs.listJobs(v1alpha1.JobQueued) {
		if strings.Contains(job.ID, "unknown") {
			t.Errorf("a job with a name has a placeholder: %s", job.ID)
		}
	}
}

// If there are two listeners, one waits and replaces the other when the other closes its session or
// stops without closing it.
func TestScaleSetHasOneListener(t *testing.T) {
	t.Parallel()

	clk := testclock.NewFakeClock(time.Now().Truncate(time.Second))
	server := githubtest.New(t, sim.Options{Clock: clk})
	first, second := newProviderWithClock(t, newSetConfig(server), clk), newProviderWithClock(t, newSetConfig(server), clk)
	jobs := newJobLedger(5)
	stop := startStream(t, first, jobs)

	timing.WaitUntil(t, "the first listener is connected", func() bool { return server.Capacity(setName) == 5 })

	listen := func() error {
		return asInterface[workload.Streamer](t, second).StreamJobs(t.Context(), jobs.getCapacity, jobs.recordJobs)
	}

	err := listen()
	if !workload.Is(err, workload.Conflict) || !strings.Contains(err.Error(), "has another listener") {
		t.Fatalf("the second Stream = %v, want a Conflict with the reason", err)
	}

	_ = stop()

	again := startStream(t, second, newJobLedger(3))

	timing.WaitUntil(t, "the second listener is connected", func() bool { return server.Capacity(setName) == 3 })

	_ = again()

	// The session of a listener that stopped without closing it ends after some time.
	if err := server.AddAbandonedSession(setName); err != nil {
		t.Fatal(err)
	}

	if err := listen(); !workload.Is(err, workload.Conflict) {
		t.Fatalf("Stream beside the session of a dead listener = %v", err)
	}

	clk.Step(6 * time.Minute)
	startStream(t, second, newJobLedger(4))
	timing.WaitUntil(t, "the new listener takes over", func() bool { return server.Capacity(setName) == 4 })
}

// stepUntil advances the clock until cond is true.
func stepUntil(t *testing.T, clk *testclock.FakeClock, by time.Duration, what string, cond func() bool) {
	t.Helper()
	timing.WaitUntil(t, what, func() bool {
		clk.Step(by)
		time.Sleep(time.Millisecond)

		return cond()
	})
}

// Tokens of both kinds expire during a session.
func TestScaleSetRenewsTokens(t *testing.T) {
	t.Parallel()

	clk := testclock.NewFakeClock(time.Now().Truncate(time.Second))
	server := githubtest.New(t, sim.Options{Clock: clk, ScaleSets: sim.ScaleSetOptions{
		AdminTokenLifetime: 7 * time.Minute, QueueTokenLifetime: 3 * time.Minute, AssignTimeout: 100 * time.Hour,
	}})
	p, jobs := newProviderWithClock(t, newSetConfig(server), clk), newJobLedger(5)
	startStream(t, p, jobs)
	timing.WaitUntil(t, "the listener is connected", func() bool { return server.Capacity(setName) == 5 })

	requests := func(name string) int { return server.State().Requests[name] }

	stepUntil(t, clk, 5*time.Second, "both tokens were renewed", func() bool {
		return requests("scaleset PATCH sessions/{session}") >= 4 && requests("runner-registration") >= 2
	})

	if got := requests("scaleset POST sessions"); got != 1 {
		t.Errorf("%d sessions were opened, want 1 that is renewed", got)
	}

	queueJobs(server, 1)
	stepUntil(t, clk, time.Second, "a job is reported", func() bool { return len(jobs.listJobs(v1alpha1.JobQueued)) == 1 })
}

// A lost session loses messages. The statistics restore the jobs, without names.
func TestScaleSetReplacesLostMessages(t *testing.T) {
	t.Parallel()

	clk := testclock.NewFakeClock(time.Now().Truncate(time.Second))
	server := githubtest.New(t, sim.Options{Clock: clk, ScaleSets: sim.ScaleSetOptions{AssignTimeout: 100 * time.Hour}})
	p, jobs := newProviderWithClock(t, newSetConfig(server), clk), newJobLedger(5)
	stop := startStream(t, p, jobs)

	timing.WaitUntil(t, "the listener is connected", func() bool { return server.Capacity(setName) == 5 })

	_ = stop()

	queueJobs(server, 3)
	server.LoseSession(setName, true)
	startStream(t, p, jobs)
	stepUntil(t, clk, time.Second, "three jobs are counted", func() bool { return len(jobs.listJobs(v1alpha1.JobQueued)) == 3 })

	placeholder := jobs.listJobs(v1alpha1.JobQueued)[0]
	if placeholder.Queue != setName || placeholder.Repository != githubtest.Repo || !strings.Contains(placeholder.ID, "unknown") {
		t.Errorf("placeholder = %+v", placeholder)
	}

	if fit := (github.Platform{}).MatchJob(workload.RunnerSpec{Queue: setName, Scope: workload.Scope{Repository: githubtest.Repo}}, placeholder); !fit.Matched {
		t.Errorf("the pool of the set does not accept it: %+v", fit)
	}

	if got, err := p.GetJob(t.Context(), placeholder.Repository, placeholder.ID); err != nil || got.State != v1alpha1.JobQueued {
		t.Errorf("Job = %+v, %v", got, err)
	}

	// The updates of the job's start and end name it, and its placeholder is closed.
	runJob(t, p, "vm-1")
	timing.WaitUntil(t, "one job and its placeholder are completed", func() bool {
		return len(jobs.listJobs(v1alpha1.JobQueued)) == 2 && len(jobs.listJobs(v1alpha1.JobCompleted)) == 2
	})
}

// All jobs run despite failures, and no job is left in the ledger.
func TestScaleSetWithFaults(t *testing.T) {
	t.Parallel()

	options := newQuickPollOptions()
	options.Seed, options.RateLimit = 7, 100000
	server := githubtest.New(t, options)
	p, jobs := newTestProvider(t, newSetConfig(server)), newJobLedger(4)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	var group sync.WaitGroup

	group.Go(func() {
		for ctx.Err() == nil {
			_ = asInterface[workload.Streamer](t, p).StreamJobs(ctx, jobs.getCapacity, jobs.recordJobs)
		}
	})

	timing.WaitUntil(t, "the listener is connected", func() bool { return server.Capacity(setName) == 4 })

	if err := server.SetFaults(control.Faults{ServerError: 0.05, MessageRepeated: 0.3}); err != nil {
		t.Fatal(err)
	}

	queueJobs(server, 12)

	for i := range 12 {
		name := fmt.Sprintf("vm-%d", i)
		timing.WaitUntil(t, "a runner is created", func() bool {
			credential, err := p.IssueCredential(t.Context(), newSetRequest(name))
			if err != nil {
				return false
			}

			githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", credential.JITConfig)

			return true
		})
	}

	server.WaitUntil("all jobs ran", func(s control.State) bool {
		for _, job := range s.Jobs {
			if job.Status != "completed" {
				return false
			}
		}

		return true
	})

	if err := server.SetFaults(control.Faults{}); err != nil {
		t.Fatal(err)
	}

	timing.WaitUntil(t, "all jobs in the ledger are completed", func() bool {
		return len(jobs.listJobs(v1alpha1.JobQueued)) == 0 && len(jobs.listJobs(v1alpha1.JobRunning)) == 0
	})
	cancel()
	group.Wait()
}

// An assignment that no runner started is withdrawn and assigned again. It is then another job of the
// ledger.
func TestScaleSetAssignsAgain(t *testing.T) {
	t.Parallel()

	clk := testclock.NewFakeClock(time.Now().Truncate(time.Second))
	server := githubtest.New(t, sim.Options{Clock: clk, ScaleSets: sim.ScaleSetOptions{
		AssignTimeout: time.Minute, AssignDelay: 5 * time.Second, SessionTimeout: time.Hour,
	}})
	p, jobs := newProviderWithClock(t, newSetConfig(server), clk), newJobLedger(5)
	startStream(t, p, jobs)
	timing.WaitUntil(t, "the listener is connected", func() bool { return server.Capacity(setName) == 5 })
	queueJobs(server, 1)
	timing.WaitUntil(t, "the job is reported", func() bool { return len(jobs.listJobs(v1alpha1.JobQueued)) == 1 })
	stepUntil(t, clk, 5*time.Second, "it is assigned again", func() bool {
		return len(jobs.listJobs(v1alpha1.JobCompleted)) == 1 && len(jobs.listJobs(v1alpha1.JobQueued)) == 1
	})

	if first := jobs.listJobs(v1alpha1.JobCompleted)[0]; first.Conclusion != "cancelled" || first.RunnerName != "" {
		t.Errorf("the first assignment ended as %+v", first)
	}
}

func TestScaleSetRejections(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, sim.Options{PATs: []sim.PAT{
		{Token: githubtest.PAT, Scopes: []string{"repo", "admin:org"}},
		{Token: "ghp_readonly", Permissions: map[string]string{"administration": "read"}},
	}})

	for name, test := range map[string]struct {
		edit   func(*github.Settings)
		req    workload.RunnerRequest
		reason string
		says   string
	}{
		"missing runner group": {
			func(s *github.Settings) {
				s.Owner, s.Repository, s.Organization, s.RunnerGroup = "", "", githubtest.Org, "nobody"
			},
			newSetRequest("vm"), github.ReasonGroup, "create the group at GitHub or change workload.config.github.runnerGroup",
		},
		"missing permissions": {
			func(s *github.Settings) { s.Token = "ghp_readonly" }, newSetRequest("vm"), github.ReasonPermission, "Administration: write",
		},
		"a token for the machine": {
			func(*github.Settings) {},
			workload.RunnerRequest{Name: "vm", Labels: []string{setName}, Registration: v1alpha1.RegistrationToken},
			github.ReasonScaleSet, "set registration to jit",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			settings := newSetConfig(server)
			test.edit(settings)
			p := newTestProvider(t, settings)

			errs := map[string]error{}
			_, errs["Issue"] = p.IssueCredential(t.Context(), test.req)

			if test.reason != github.ReasonScaleSet {
				errs["Stream"] = asInterface[workload.Streamer](t, p).StreamJobs(t.Context(), newJobLedger(1).getCapacity, newJobLedger(1).recordJobs)
				errs["Validate"] = p.Validate(t.Context())
			}

			for what, err := range errs {
				var typed *workload.Error
				if !workload.Is(err, workload.Rejected) || !errors.As(err, &typed) || typed.Reason != test.reason ||
					!strings.Contains(err.Error(), test.says) {
					t.Errorf("%s = %v, want a rejection with the fix %q", what, err, test.says)
				}
			}
		})
	}
}

func TestScaleSetRunnerNames(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, newQuickPollOptions())
	p := newTestProvider(t, newSetConfig(server))

	first, err := p.IssueCredential(t.Context(), newSetRequest("vm"))
	if err != nil {
		t.Fatal(err)
	}

	// A runner that never came online is replaced.
	second, err := p.IssueCredential(t.Context(), newSetRequest("vm"))
	if err != nil || second.RunnerID == first.RunnerID {
		t.Fatalf("Issue again = %+v, %v; the first was %s", second, err, first.RunnerID)
	}

	githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", second.JITConfig)
	server.WaitUntil("the runner is online", func(s control.State) bool { return len(s.Runners) == 1 && s.Runners[0].Online })

	if _, err := p.IssueCredential(t.Context(), newSetRequest("vm")); !workload.Is(err, workload.Conflict) {
		t.Errorf("Issue in addition to an online runner = %v, want a Conflict", err)
	}

	if found, err := p.FindRunner(t.Context(), "vm", 0); err != nil || found.ID != second.RunnerID {
		t.Errorf("Find = %+v, %v, want %s", found, err, second.RunnerID)
	}

	if err := p.Deregister(t.Context(), second.RunnerID); err != nil {
		t.Errorf("Deregister: %v", err)
	}
}

// A deleted set is created again, and a set without its name as label gets the label.
func TestScaleSetIsRecreated(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, newQuickPollOptions())
	p := newTestProvider(t, newSetConfig(server))

	if _, err := p.IssueCredential(t.Context(), newSetRequest("vm-1")); err != nil {
		t.Fatal(err)
	}

	if err := server.DeleteScaleSet(setName); err != nil {
		t.Fatal(err)
	}

	if err := server.AddScaleSet(githubtest.Repo, setName, "gpu"); err != nil {
		t.Fatal(err)
	}

	if _, err := p.IssueCredential(t.Context(), newSetRequest("vm-2")); err != nil {
		t.Fatal(err)
	}

	jobs := newJobLedger(5)
	startStream(t, p, jobs)
	queueJobs(server, 1)
	server.Queue(control.JobSpec{Labels: []string{"gpu"}})
	timing.WaitUntil(t, "jobs with either label are reported", func() bool { return len(jobs.listJobs(v1alpha1.JobQueued)) == 2 })
}

func TestScaleSetJobs(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, newQuickPollOptions())
	p, jobs := newTestProvider(t, newSetConfig(server)), newJobLedger(5)

	if _, err := p.GetJob(t.Context(), githubtest.Repo, "ss-1-abc-9"); err == nil {
		t.Error("a job is reported although there is no listener")
	}

	startStream(t, p, jobs)
	queueJobs(server, 1)
	timing.WaitUntil(t, "the job is reported", func() bool { return len(jobs.listJobs(v1alpha1.JobQueued)) == 1 })

	job := jobs.listJobs(v1alpha1.JobQueued)[0]
	if got, err := p.GetJob(t.Context(), job.Repository, job.ID); err != nil || got.State != v1alpha1.JobQueued || got.ID != job.ID {
		t.Errorf("Job = %+v, %v", got, err)
	}

	if got, err := p.GetJob(t.Context(), githubtest.Repo, "ss-99-abcdef-1"); err != nil || got.State != v1alpha1.JobCompleted {
		t.Errorf("a job of a deleted set = %+v, %v", got, err)
	}
}

// Errors contain no secrets, and tokens are sent to no other host.
func TestScaleSetKeepsSecrets(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, newQuickPollOptions())

	var tokens []string

	var mu sync.Mutex

	spy := func(next http.RoundTripper) http.RoundTripper {
		return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()

			_, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
			tokens = append(tokens, token)

			if strings.Contains(r.URL.Path, "/sessions") {
				return nil, fmt.Errorf("connection reset with %s", token)
			}

			return next.RoundTrip(r)
		})
	}

	p, err := github.New(github.Config{Settings: newSetConfig(server), WrapTransport: spy})
	if err != nil {
		t.Fatal(err)
	}

	err = asInterface[workload.Streamer](t, p).StreamJobs(t.Context(), newJobLedger(1).getCapacity, newJobLedger(1).recordJobs)

	mu.Lock()
	defer mu.Unlock()

	if err == nil || len(tokens) < 4 {
		t.Fatalf("Stream = %v after %d calls", err, len(tokens))
	}

	for _, token := range tokens {
		if strings.Contains(err.Error(), token) {
			t.Errorf("the error holds a token: %v", err)
		}
	}
}

// A stream ends in time, and with it the operator, while the service does not answer that the session is closed.
func TestScaleSetEndsBesideASilentService(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, newQuickPollOptions())
	silent := func(next http.RoundTripper) http.RoundTripper {
		return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/sessions") {
				<-r.Context().Done()

				return nil, r.Context().Err()
			}

			return next.RoundTrip(r)
		})
	}

	p, err := github.New(github.Config{Settings: newSetConfig(server), WrapTransport: silent})
	if err != nil {
		t.Fatal(err)
	}

	jobs := newJobLedger(1)
	stop := startStream(t, p, jobs)

	queueJobs(server, 1)
	timing.WaitUntil(t, "the job is reported", func() bool { return len(jobs.listJobs(v1alpha1.JobQueued)) == 1 })

	ended := make(chan struct{})
	go func() {
		defer close(ended)

		_ = stop()
	}()

	select {
	case <-ended:
	case <-time.After(8 * time.Second): // the operator's timeout
		t.Error("the stream does not end")
	}
}
