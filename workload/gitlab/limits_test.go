// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab_test

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	sim "github.com/hyperfleet/hyperfleet/sim/gitlab"
	"github.com/hyperfleet/hyperfleet/sim/gitlab/gitlabtest"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/gitlab"
)

func TestRateLimit(t *testing.T) {
	t.Parallel()

	server := gitlabtest.New(t, sim.Options{})
	clk := clocktesting.NewFakeClock(time.Now())
	count := newCountingTransport()
	config := newProjectConfig(server)
	config.WrapTransport = count.wrap

	p, err := gitlab.NewWithClock(config, clk)
	if err != nil {
		t.Fatal(err)
	}

	issued, err := p.IssueCredential(t.Context(), newRequest("before"))
	if err != nil {
		t.Fatal(err)
	}

	faults := control.Faults{RateLimit: 1, RetryAfter: 7 * time.Second}
	if err := server.SetFaults(faults); err != nil {
		t.Fatal(err)
	}

	limited := func(what string, err error) {
		t.Helper()

		got, ok := errors.AsType[*workload.Error](err)
		if !ok || got.Kind != workload.RateLimited || got.RetryAfter < time.Second || got.RetryAfter > 7*time.Second {
			t.Errorf("%s: %+v, want RateLimited for at most 7 s", what, err)
		}
	}

	limited("Deregister", p.Deregister(t.Context(), issued.RunnerID))

	if err := server.SetFaults(control.Faults{}); err != nil {
		t.Fatal(err)
	}

	// While the rate limit is exceeded, deferrable calls are not made. Others are.
	clk.Step(time.Second)

	before := count.sum()
	_, findErr := p.FindRunner(t.Context(), "before", 0)
	_, jobErr := p.GetJob(t.Context(), gitlabtest.Project, "1")
	poller, _ := p.(workload.Poller)
	_, jobsErr := poller.ListJobs(t.Context(), nil)

	limited("Find", findErr)
	limited("Job", jobErr)
	limited("Jobs", jobsErr)
	limited("Validate", p.Validate(t.Context()))

	if count.sum() != before {
		t.Errorf("%d calls were made although the rate limit is reached", count.sum()-before)
	}

	if err := p.Deregister(t.Context(), issued.RunnerID); err != nil {
		t.Errorf("Deregister: %v", err)
	}

	clk.Step(8 * time.Second)

	if _, err := p.FindRunner(t.Context(), "before", 0); !workload.Is(err, workload.NotFound) {
		t.Errorf("Find after the limit: %v", err)
	}
}

// countingTransport counts the attempts by method.
type countingTransport struct {
	next     http.RoundTripper
	mu       sync.Mutex
	requests map[string]int
}

func newCountingTransport() *countingTransport { return &countingTransport{requests: map[string]int{}} }

func (c *countingTransport) wrap(next http.RoundTripper) http.RoundTripper {
	c.next = next

	return c
}

func (c *countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	c.requests[r.Method]++
	c.mu.Unlock()

	return c.next.RoundTrip(r)
}

func (c *countingTransport) sum() int {
	c.mu.Lock()
	defer c.mu.Unlock()

	out := 0
	for _, n := range c.requests {
		out += n
	}

	return out
}

func TestOutagesAreRetriedExceptForWrites(t *testing.T) {
	t.Parallel()

	server := gitlabtest.New(t, sim.Options{})
	count := newCountingTransport()
	config := newProjectConfig(server)
	config.WrapTransport = count.wrap
	p := newTestProvider(t, config)

	// Cache the runner list and the project's id, so that only the POST is left.
	if err := p.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}

	if err := server.SetFaults(control.Faults{ServerError: 1}); err != nil {
		t.Fatal(err)
	}

	clear(count.requests)

	_, issueErr := p.IssueCredential(t.Context(), newRequest("x"))
	_, findErr := p.FindRunner(t.Context(), "x", 0)

	for name, err := range map[string]error{"Find": findErr, "Deregister": p.Deregister(t.Context(), "5"), "Issue": issueErr} {
		if err == nil || workload.KindOf(err) != "" || !strings.Contains(err.Error(), "502") {
			t.Errorf("%s: %v, want a transient error", name, err)
		}
	}

	if diff := cmp.Diff(map[string]int{"GET": 3, "PUT": 3, "POST": 1}, count.requests); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// A runner whose creation succeeded without a response is listed and replaced by the next attempt.
func TestLostResponseCreatesNoSecondRunner(t *testing.T) {
	t.Parallel()

	server := gitlabtest.New(t, sim.Options{})
	lose := atomic.Bool{}
	config := newProjectConfig(server)
	config.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
		return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(r)
			if err == nil && r.Method == http.MethodPost && lose.CompareAndSwap(true, false) {
				_ = resp.Body.Close()

				return nil, errors.New("connection reset by peer")
			}

			return resp, err
		})
	}
	p := newTestProvider(t, config)

	lose.Store(true)

	if _, err := p.IssueCredential(t.Context(), newRequest("once")); err == nil || workload.KindOf(err) != "" {
		t.Fatalf("Issue without a response: %v", err)
	}

	if n := len(server.State().Runners); n != 1 {
		t.Fatalf("%d runners were created", n)
	}

	issued, err := p.IssueCredential(t.Context(), newRequest("once"))
	if err != nil {
		t.Fatal(err)
	}

	if found, err := p.FindRunner(t.Context(), "once", 0); err != nil || found.ID != issued.RunnerID || len(server.State().Runners) != 1 {
		t.Errorf("Find = %+v, %v of %+v", found, err, server.State().Runners)
	}
}

func TestListingIsSharedAndPaged(t *testing.T) {
	t.Parallel()

	const many = 120

	server := gitlabtest.New(t, sim.Options{})
	count := newCountingTransport()
	config := newGroupConfig(server)
	config.WrapTransport = count.wrap
	p := newTestProvider(t, config)

	for i := range many {
		if _, err := p.IssueCredential(t.Context(), newRequest(fmt.Sprintf("many-%03d", i))); err != nil {
			t.Fatal(err)
		}
	}

	// Use a new provider, whose runner list is not cached.
	p = newTestProvider(t, config)

	clear(count.requests)

	var group sync.WaitGroup
	for i := range many {
		group.Go(func() {
			if _, err := p.FindRunner(t.Context(), fmt.Sprintf("many-%03d", i), time.Minute); err != nil {
				t.Error(err)
			}
		})
	}

	group.Wait()

	if count.requests["GET"] != 2 {
		t.Errorf("%d calls listed two pages", count.requests["GET"])
	}

	if all, err := p.ListRunners(t.Context(), "many-11"); err != nil || len(all) != 10 || all[0].Name != "many-110" {
		t.Errorf("Runners = %v, %v", all, err)
	}
}

// A token must not be sent to a host that is not configured, even after a redirect.
func TestTokenIsSentOnlyToConfiguredHost(t *testing.T) {
	t.Parallel()

	var strayed atomic.Int32

	foreign := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { strayed.Add(1) }))
	defer foreign.Close()

	home := httptest.NewServer(http.RedirectHandler(foreign.URL, http.StatusTemporaryRedirect))
	defer home.Close()

	p := newTestProvider(t, gitlab.Config{URL: home.URL, Group: "acme", Token: gitlabtest.Token})

	_, err := p.FindRunner(t.Context(), "x", 0)
	checkError(t, err, workload.Rejected, gitlab.ReasonConfig, "redirects to "+foreign.URL)

	if strayed.Load() != 0 || strings.Contains(err.Error(), gitlabtest.Token) {
		t.Errorf("%d calls strayed, error %v", strayed.Load(), err)
	}
}

func TestTimeout(t *testing.T) {
	t.Parallel()

	release := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))

	defer slow.Close()
	defer close(release)

	p := newTestProvider(t, gitlab.Config{URL: slow.URL, Group: "acme", Token: gitlabtest.Token, Timeout: 20 * time.Millisecond})

	// The text is "context deadline exceeded" or "Client.Timeout exceeded", by which of two timers of net/http is first.
	if _, err := p.IssueCredential(t.Context(), newRequest("x")); err == nil || workload.KindOf(err) != "" || !strings.Contains(err.Error(), "exceeded") {
		t.Errorf("Issue: %v, want a transient error with the cause", err)
	}
}

// A server that is not GitLab is an error and not an empty result.
func TestNotGitLab(t *testing.T) {
	t.Parallel()

	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("<html>Welcome</html>"))
	}))
	defer site.Close()

	p := newTestProvider(t, gitlab.Config{URL: site.URL, Group: "acme", Token: gitlabtest.Token})
	_, findErr := p.FindRunner(t.Context(), "x", 0)

	for name, err := range map[string]error{"Validate": p.Validate(t.Context()), "Find": findErr} {
		if err == nil || workload.Is(err, workload.NotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]string{
		"token an-odd-token is bad":                                         "token REDACTED is bad",
		"glpat-16C7e42F292c6912E771":                                        "REDACTED",
		"runner glrt-t1_16C7e42F292c.01.abc is gone":                        "runner REDACTED is gone",
		"Private-Token: abcdefghijklmnopqrst":                               "REDACTED",
		"Get https://me:pw@host/x?access_token=abcdefghijklmnopqrst&page=2": "Get https:REDACTEDhost/x?REDACTED&page=2",
		"listing runners of group acme: status 502":                         "listing runners of group acme: status 502",
		"the access token is expired or revoked":                            "the access token is expired or revoked",
	} {
		if got := gitlab.Redact("an-odd-token", text); got != want {
			t.Errorf("Redact(%q) = %q, want %q", text, got, want)
		}
	}
}

// There are few operation names, whatever names and numbers the paths contain.
func TestOperation(t *testing.T) {
	t.Parallel()

	server := gitlabtest.New(t, sim.Options{})
	server.Queue(control.JobSpec{Labels: []string{"linux"}})

	var (
		mu   sync.Mutex
		seen = map[string]bool{}
	)

	for _, config := range []gitlab.Config{newProjectConfig(server), newGroupConfig(server), newInstanceConfig(server)} {
		config.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
			return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
				mu.Lock()
				defer mu.Unlock()

				seen[gitlab.OperationName(r)] = true

				return next.RoundTrip(r)
			})
		}
		p := newTestProvider(t, config)

		if err := p.Validate(t.Context()); err != nil {
			t.Fatal(err)
		}

		issued, err := p.IssueCredential(t.Context(), newRequest("named"))
		if err != nil {
			t.Fatal(err)
		}

		if err := p.Deregister(t.Context(), issued.RunnerID); err != nil {
			t.Fatal(err)
		}

		poller, _ := p.(workload.Poller)
		if _, err := poller.ListJobs(t.Context(), []string{gitlabtest.Project}); err != nil {
			t.Fatal(err)
		}

		if _, err := p.GetJob(t.Context(), gitlabtest.Project, "1977"); err != nil {
			t.Fatal(err)
		}
	}

	want := []string{
		"DELETE /runners/{}", "GET /groups/{}", "GET /groups/{}/projects", "GET /groups/{}/runners", "GET /personal_access_tokens/self",
		"GET /projects/{}", "GET /projects/{}/jobs", "GET /projects/{}/jobs/{}", "GET /projects/{}/runners", "GET /runners/all",
		"GET /runners/{}/jobs", "POST /user/runners", "PUT /runners/{}",
	}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(seen))); diff != "" {
		t.Errorf("operations (-want +got):\n%s", diff)
	}

	odd := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://example.com/somewhere/else", http.NoBody)
	if got := gitlab.OperationName(odd); got != "GET" {
		t.Errorf("another path is %q", got)
	}
}
