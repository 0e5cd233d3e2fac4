// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	sim "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

func TestRateLimits(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		faults   control.Faults
		min, max time.Duration
	}{
		"primary":   {control.Faults{RateLimit: 1}, time.Second, time.Hour},
		"secondary": {control.Faults{SecondaryRateLimit: 1, RetryAfter: 7 * time.Second}, time.Second, 7 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			server := githubtest.New(t, sim.Options{Faults: test.faults})
			p := provider(t, repositoryScope(server))

			for range 2 {
				_, err := p.Issue(t.Context(), request("limited"))

				got, ok := errors.AsType[*workload.Error](err)
				if !ok || got.Kind != workload.RateLimited || got.After < test.min || got.After > test.max {
					t.Errorf("Issue: %+v, want RateLimited with %s to %s", err, test.min, test.max)
				}
			}
		})
	}
}

// When little is left of the hour's calls, what can wait waits.
func TestBudgetKeepsCallsForRunners(t *testing.T) {
	t.Parallel()

	const limit = 30

	server := githubtest.New(t, sim.Options{RateLimit: limit})
	p := provider(t, repositoryScope(server))
	job := server.Queue(control.JobSpec{Labels: []string{"x"}})[0]

	if err := p.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}

	for i := range limit - limit/10 - 2 {
		if _, err := p.Find(t.Context(), "nobody", 0); !workload.Is(err, workload.NotFound) {
			t.Fatalf("call %d: %v", i, err)
		}
	}

	if _, err := p.Find(t.Context(), "nobody", 0); !workload.Is(err, workload.RateLimited) {
		t.Errorf("a listing with little left: %v", err)
	}

	if _, err := p.Find(t.Context(), "nobody", time.Hour); !workload.Is(err, workload.NotFound) {
		t.Errorf("a listing that is there: %v", err)
	}

	for i, want := range []workload.Kind{"", workload.RateLimited} {
		if _, err := p.Job(t.Context(), githubtest.Repo, strconv.FormatInt(job.ID, 10)); workload.KindOf(err) != want {
			t.Errorf("job %d with little left: %v, want %q", i, err, want)
		}
	}

	before := server.State().Requests["actions/list-self-hosted-runners-for-repo"]
	if err := p.Validate(t.Context()); err != nil || server.State().Requests["actions/list-self-hosted-runners-for-repo"] != before {
		t.Errorf("validation, shown to be right before: %v", err)
	}

	issued, err := p.Issue(t.Context(), request("must"))
	if err != nil {
		t.Fatalf("Issue: %v", err)
	}

	if err := p.Deregister(t.Context(), issued.RunnerID); err != nil {
		t.Errorf("Deregister: %v", err)
	}
}

// counting counts the tries by method.
type counting struct {
	next http.RoundTripper
	mu   sync.Mutex
	got  map[string]int
}

func (c *counting) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	c.got[r.Method]++
	c.mu.Unlock()

	return c.next.RoundTrip(r)
}

func counted(t *testing.T, config *github.Settings) (workload.Provider, *counting) {
	t.Helper()

	count := &counting{got: map[string]int{}}

	p, err := github.New(github.Config{Settings: config, Transport: func(next http.RoundTripper) http.RoundTripper {
		count.next = next

		return count
	}})
	if err != nil {
		t.Fatal(err)
	}

	return p, count
}

func TestOutagesAreRetriedUnlessSomethingIsMade(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, sim.Options{Faults: control.Faults{ServerError: 1}})
	p, count := counted(t, repositoryScope(server))

	_, findErr := p.Find(t.Context(), "x", 0)
	_, issueErr := p.Issue(t.Context(), request("x"))

	for name, err := range map[string]error{"Find": findErr, "Deregister": p.Deregister(t.Context(), "5"), "Issue": issueErr} {
		if err == nil || workload.KindOf(err) != "" || !strings.Contains(err.Error(), "502") {
			t.Errorf("%s: %v, want a transient error", name, err)
		}
	}

	if diff := cmp.Diff(map[string]int{"GET": 3, "DELETE": 3, "POST": 1}, count.got); diff != "" {
		t.Errorf("tries (-want +got):\n%s", diff)
	}
}

func TestListingIsSharedAndPaged(t *testing.T) {
	t.Parallel()

	const many = 120

	server := githubtest.New(t, sim.Options{})
	p, count := counted(t, repositoryScope(server))

	for i := range many {
		// A provider of its own is not put off by the others' registrations.
		if _, err := provider(t, repositoryScope(server)).Issue(t.Context(), request(fmt.Sprintf("many-%03d", i))); err != nil {
			t.Fatal(err)
		}
	}

	var group sync.WaitGroup
	for i := range many {
		group.Go(func() {
			if _, err := p.Find(t.Context(), fmt.Sprintf("many-%03d", i), time.Minute); err != nil {
				t.Error(err)
			}
		})
	}

	group.Wait()

	if count.got["GET"] != 2 {
		t.Errorf("%d calls listed two pages", count.got["GET"])
	}

	if all, err := p.Runners(t.Context(), "many-11"); err != nil || len(all) != 10 || all[0].Name != "many-110" {
		t.Errorf("Runners = %v, %v", all, err)
	}
}

func TestListingAge(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, sim.Options{})
	clk := clocktesting.NewFakeClock(time.Now())
	count := &counting{got: map[string]int{}}

	p, err := github.NewWithClock(github.Config{
		Settings: repositoryScope(server), Transport: func(next http.RoundTripper) http.RoundTripper {
			count.next = next

			return count
		},
	}, clk)
	if err != nil {
		t.Fatal(err)
	}

	for _, step := range []struct {
		wait, age time.Duration
		calls     int
	}{
		{0, time.Minute, 1},
		{59 * time.Second, time.Minute, 1},
		{2 * time.Second, time.Minute, 2},
		{time.Second, 2 * time.Second, 2},
		{time.Second, 0, 3},
	} {
		clk.Step(step.wait)

		if _, err := p.Find(t.Context(), "x", step.age); !workload.Is(err, workload.NotFound) {
			t.Fatal(err)
		}

		if count.got["GET"] != step.calls {
			t.Errorf("%s later, at most %s old: %d calls, want %d", step.wait, step.age, count.got["GET"], step.calls)
		}
	}
}

// A token must not follow a redirect to a host that nobody configured.
func TestCredentialsStayHome(t *testing.T) {
	t.Parallel()

	var strayed atomic.Int32

	foreign := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { strayed.Add(1) }))
	defer foreign.Close()

	home := httptest.NewServer(http.RedirectHandler(foreign.URL, http.StatusTemporaryRedirect))
	defer home.Close()

	p := provider(t, &github.Settings{Token: githubtest.PAT, Organization: "acme", APIURL: home.URL})

	_, err := p.Find(t.Context(), "x", 0)
	if err == nil || strayed.Load() != 0 || strings.Contains(err.Error(), githubtest.PAT) {
		t.Errorf("%d calls strayed, error %v", strayed.Load(), err)
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()

	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()

	p := provider(t, &github.Settings{Token: githubtest.PAT, Organization: "acme", APIURL: gone.URL})

	err := p.Validate(t.Context())
	if err == nil || workload.KindOf(err) != "" || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("Validate: %v, want a transient error that says what is wrong", err)
	}
}

func TestTimeout(t *testing.T) {
	t.Parallel()

	release := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))

	defer slow.Close()
	defer close(release)

	p, err := github.New(github.Config{
		Settings: &github.Settings{Token: githubtest.PAT, Organization: "acme", APIURL: slow.URL},
		Timeout:  20 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}

	if _, err := p.Issue(t.Context(), request("x")); err == nil || workload.KindOf(err) != "" {
		t.Errorf("Issue: %v, want a transient error", err)
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()

	config := &github.Settings{Token: "an-odd-token"}

	for text, want := range map[string]string{
		"token an-odd-token is bad":                                         "token REDACTED is bad",
		"ghs_16C7e42F292c6912E7710c838347Ae178B4a":                          "REDACTED",
		"Authorization: Bearer eyJhbGciOi.eyJpc.sig-_":                      "Authorization: REDACTED",
		"Get https://me:pw@host/x?access_token=abcdefghijklmnopqrst&page=2": "Get https:REDACTEDhost/x?REDACTED&page=2",
		"listing runners of acme/app: status 502":                           "listing runners of acme/app: status 502",
		"the token is wrong, expired or revoked":                            "the token is wrong, expired or revoked",
	} {
		if got := github.Redact(config, text); got != want {
			t.Errorf("Redact(%q) = %q, want %q", text, got, want)
		}
	}
}
