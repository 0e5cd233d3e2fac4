// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	sim "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

// When few of the hour's calls are left, deferrable calls are not made.
func TestBudgetKeepsCallsForRunners(t *testing.T) {
	t.Parallel()

	const limit = 30

	server := githubtest.New(t, sim.Options{RateLimit: limit})
	p := newTestProvider(t, newRepositoryConfig(server))
	job := server.Queue(control.JobSpec{Labels: []string{"x"}})[0]

	if err := p.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}

	for i := range limit - limit/10 - 2 {
		if _, err := p.FindRunner(t.Context(), "nobody", 0); !workload.Is(err, workload.NotFound) {
			t.Fatalf("call %d: %v", i, err)
		}
	}

	if _, err := p.FindRunner(t.Context(), "nobody", 0); !workload.Is(err, workload.RateLimited) {
		t.Errorf("a listing with little left: %v", err)
	}

	if _, err := p.FindRunner(t.Context(), "nobody", time.Hour); !workload.Is(err, workload.NotFound) {
		t.Errorf("a listing that is there: %v", err)
	}

	for i, want := range []workload.Kind{"", workload.RateLimited} {
		if _, err := p.GetJob(t.Context(), githubtest.Repo, strconv.FormatInt(job.ID, 10)); workload.KindOf(err) != want {
			t.Errorf("job %d with few calls left: %v, want %q", i, err, want)
		}
	}

	before := server.State().Requests["actions/list-self-hosted-runners-for-repo"]
	if err := p.Validate(t.Context()); err != nil || server.State().Requests["actions/list-self-hosted-runners-for-repo"] != before {
		t.Errorf("validation, shown to be right before: %v", err)
	}

	issued, err := p.IssueCredential(t.Context(), newRunnerRequest("must"))
	if err != nil {
		t.Fatalf("Issue: %v", err)
	}

	if err := p.Deregister(t.Context(), issued.RunnerID); err != nil {
		t.Errorf("Deregister: %v", err)
	}
}

func TestOutagesAreRetriedExceptForWrites(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, sim.Options{Faults: control.Faults{ServerError: 1}})
	p, watched := newCountedProvider(t, newRepositoryConfig(server), clock.RealClock{})

	_, findErr := p.FindRunner(t.Context(), "x", 0)
	_, issueErr := p.IssueCredential(t.Context(), newRunnerRequest("x"))

	for name, err := range map[string]error{"Find": findErr, "Deregister": p.Deregister(t.Context(), "5"), "Issue": issueErr} {
		if err == nil || workload.KindOf(err) != "" || !strings.Contains(err.Error(), "502") {
			t.Errorf("%s: %v, want a transient error", name, err)
		}
	}

	if diff := cmp.Diff(map[string]int{"GET": 3, "DELETE": 3, "POST": 1}, watched.requests); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestListingIsSharedAndPaged(t *testing.T) {
	t.Parallel()

	const many = 120

	server := githubtest.New(t, sim.Options{})
	p, watched := newCountedProvider(t, newRepositoryConfig(server), clock.RealClock{})

	for i := range many {
		// A provider with its own budget is not delayed by the registrations of others.
		if _, err := newTestProvider(t, newRepositoryConfig(server)).IssueCredential(t.Context(), newRunnerRequest(fmt.Sprintf("many-%03d", i))); err != nil {
			t.Fatal(err)
		}
	}

	var group sync.WaitGroup
	for i := range many {
		group.Go(func() {
			if _, err := p.FindRunner(t.Context(), fmt.Sprintf("many-%03d", i), time.Minute); err != nil {
				t.Error(err)
			}
		})
	}

	group.Wait()

	if watched.requests["GET"] != 2 {
		t.Errorf("%d calls listed two pages", watched.requests["GET"])
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

	p := newTestProvider(t, &github.Settings{Token: githubtest.PAT, Organization: "acme", APIURL: home.URL})

	_, err := p.FindRunner(t.Context(), "x", 0)
	if err == nil || strayed.Load() != 0 || strings.Contains(err.Error(), githubtest.PAT) {
		t.Errorf("%d calls strayed, error %v", strayed.Load(), err)
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

	// The text is "context deadline exceeded" or "Client.Timeout exceeded", by which of two timers of net/http is first.
	if _, err := p.IssueCredential(t.Context(), newRunnerRequest("x")); err == nil || workload.KindOf(err) != "" || !strings.Contains(err.Error(), "exceeded") {
		t.Errorf("Issue: %v, want a transient error with the cause", err)
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

// TestRequestsNameVersionAndToken checks the headers with which a registration token is requested.
func TestRequestsNameVersionAndToken(t *testing.T) {
	t.Parallel()

	seen := make(chan http.Header, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/registration-token") {
			seen <- r.Header.Clone()

			w.WriteHeader(http.StatusNotFound)
		}

		_, _ = io.WriteString(w, `{"total_count": 0, "runners": []}`)
	}))
	t.Cleanup(server.Close)

	p := newTestProvider(t, &github.Settings{Token: "ghp_x", Owner: "acme", Repository: "app", APIURL: server.URL})
	req := newRunnerRequest("r")
	req.Registration = v1alpha1.RegistrationToken

	if _, err := p.IssueCredential(t.Context(), req); err == nil {
		t.Fatal("the token of a server that has none")
	}

	select {
	case header := <-seen:
		for name, want := range map[string]string{
			"Accept": "application/vnd.github+json", "Authorization": "Bearer ghp_x", "X-Github-Api-Version": "2022-11-28",
		} {
			if got := header.Get(name); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	default:
		t.Error("no token was requested")
	}
}

// TestExpiryIsThatOfTheToken checks that the expiry of a registration token is the one in GitHub's response.
func TestExpiryIsThatOfTheToken(t *testing.T) {
	t.Parallel()

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/registration-token") {
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"token": "AABB", "expires_at": "2031-02-03T04:05:06.000-08:00"}`)

			return
		}

		_, _ = io.WriteString(w, `{"total_count": 0, "runners": []}`)
	}))
	t.Cleanup(server.Close)

	p := newTestProvider(t, &github.Settings{Token: "ghp_x", Owner: "acme", Repository: "app", APIURL: server.URL})
	req := newRunnerRequest("r")
	req.Registration = v1alpha1.RegistrationToken

	got, err := p.IssueCredential(t.Context(), req)
	if want := time.Date(2031, 2, 3, 12, 5, 6, 0, time.UTC); err != nil || !got.ExpiresAt.Equal(want) {
		t.Errorf("the token expires at %s, %v; want %s", got.ExpiresAt, err, want)
	}
}

// TestInstallationTokenIsRenewed checks that an App gets another installation token before the first one expires.
func TestInstallationTokenIsRenewed(t *testing.T) {
	t.Parallel()

	_, key := newKey(t)

	for lifetime, want := range map[time.Duration]int32{time.Hour: 1, 30 * time.Second: 2} {
		var issued atomic.Int32

		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/access_tokens") {
				w.WriteHeader(http.StatusCreated)
				_, _ = fmt.Fprintf(w, `{"token": "ghs_%d", "expires_at": %q}`, issued.Add(1), time.Now().Add(lifetime).UTC().Format(time.RFC3339))

				return
			}

			_, _ = io.WriteString(w, `{"total_count": 0, "runners": []}`)
		}))
		t.Cleanup(server.Close)

		p := newTestProvider(t, &github.Settings{
			App: &github.App{AppID: "1", PrivateKey: key, InstallationID: 2}, Owner: "acme", Repository: "app", APIURL: server.URL,
		})

		for range 2 {
			if _, err := p.ListRunners(t.Context(), "x"); err != nil {
				t.Fatal(err)
			}

			if _, err := p.FindRunner(t.Context(), "x", 0); workload.KindOf(err) != workload.NotFound {
				t.Fatal(err)
			}
		}

		if got := issued.Load(); want == 1 && got != 1 || want > 1 && got < want {
			t.Errorf("%d tokens with a lifetime of %s, want %d", got, lifetime, want)
		}
	}
}
