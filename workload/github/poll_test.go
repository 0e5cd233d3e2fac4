// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	sim "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

// countingTransport counts requests by method and responses by status.
type countingTransport struct {
	next http.RoundTripper

	mu        sync.Mutex
	requests  map[string]int
	status    map[int]int
	remaining string
}

func (w *countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := w.next.RoundTrip(r)
	if err != nil {
		return nil, fmt.Errorf("watched: %w", err)
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	w.requests[r.Method]++
	w.status[resp.StatusCode]++
	w.remaining = resp.Header.Get("X-Ratelimit-Remaining")

	return resp, nil
}

// takeStatuses returns the responses by status since the last call.
func (w *countingTransport) takeStatuses() map[int]int {
	w.mu.Lock()
	defer w.mu.Unlock()

	out := w.status
	w.status = map[int]int{}

	return out
}

// newCountedProvider returns a provider whose calls are counted.
func newCountedProvider(t *testing.T, config *github.Settings, clk clock.Clock) (workload.Provider, *countingTransport) {
	t.Helper()

	out := &countingTransport{status: map[int]int{}, requests: map[string]int{}}

	p, err := github.NewWithClock(github.Config{Settings: config, WrapTransport: func(next http.RoundTripper) http.RoundTripper {
		out.next = next

		return out
	}}, clk)
	if err != nil {
		t.Fatal(err)
	}

	return p, out
}

func newCountedPoller(t *testing.T, config *github.Settings, clk clock.Clock) (workload.Poller, *countingTransport) {
	t.Helper()

	p, watched := newCountedProvider(t, config, clk)

	return asInterface[workload.Poller](t, p), watched
}

func pollJobs(t *testing.T, p workload.Poller, repositories ...string) []workload.Job {
	t.Helper()

	jobs, err := p.ListJobs(t.Context(), repositories)
	if err != nil {
		t.Fatalf("Jobs: %v", err)
	}

	slices.SortFunc(jobs, func(a, b workload.Job) int { return strings.Compare(a.ID, b.ID) })

	return jobs
}

func listStates(jobs []workload.Job) []string {
	out := []string{}
	for _, job := range jobs {
		out = append(out, job.Name+" "+string(job.State))
	}

	return out
}

func TestPollFollowsJobs(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, sim.Options{})
	p, _ := newCountedPoller(t, newRepositoryConfig(server), clocktesting.NewFakeClock(time.Now()))

	if jobs := pollJobs(t, p); len(jobs) != 0 {
		t.Errorf("an idle repository has %v", listStates(jobs))
	}

	server.Queue(control.JobSpec{Name: "build", Labels: []string{"linux"}, Count: 2})
	server.Queue(control.JobSpec{Name: "deploy", Labels: []string{"linux"}, Environment: "prod"})

	first := pollJobs(t, p)
	if diff := cmp.Diff([]string{"build (1) Queued", "build (2) Queued", "deploy Waiting"}, listStates(first)); diff != "" {
		t.Fatalf("jobs (-want +got):\n%s", diff)
	}

	issued, err := newTestProvider(t, newRepositoryConfig(server)).IssueCredential(t.Context(), newRunnerRequest("one"))
	if err != nil {
		t.Fatal(err)
	}

	// While one job of a run runs and another waits, the run has a status that differs from both.
	runner := githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", issued.JITConfig)
	if code := runner.Wait(); code != 0 {
		t.Fatalf("the runner ends with %d", code)
	}

	if diff := cmp.Diff([]string{"build (1) Completed", "build (2) Queued", "deploy Waiting"}, listStates(pollJobs(t, p))); diff != "" {
		t.Errorf("after a job completed (-want +got):\n%s", diff)
	}

	if diff := cmp.Diff([]string{"build (2) Queued", "deploy Waiting"}, listStates(pollJobs(t, p))); diff != "" {
		t.Errorf("a job's end is reported once (-want +got):\n%s", diff)
	}

	for _, job := range server.State().Jobs {
		if job.Status != "completed" {
			if err := server.Cancel(job.ID); err != nil {
				t.Fatal(err)
			}
		}
	}

	// The runs are no longer listed, but the end of their jobs is reported.
	if diff := cmp.Diff([]string{"build (2) Completed", "deploy Completed"}, listStates(pollJobs(t, p))); diff != "" {
		t.Errorf("at the end (-want +got):\n%s", diff)
	}

	if jobs := pollJobs(t, p); len(jobs) != 0 {
		t.Errorf("after the end: %v", listStates(jobs))
	}
}

// A poll that finds no changes uses none of the hour's calls, and lists no jobs of completed runs.
func TestPollWithoutChangesUsesNoCalls(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, sim.Options{})
	p, watch := newCountedPoller(t, newRepositoryConfig(server), clocktesting.NewFakeClock(time.Now()))

	server.Queue(control.JobSpec{Labels: []string{"x"}, Count: 150}) // two pages of jobs
	server.Queue(control.JobSpec{Labels: []string{"x"}})

	if jobs := pollJobs(t, p); len(jobs) != 151 {
		t.Fatalf("%d jobs", len(jobs))
	}

	const lists, pages = 5, 3

	left := watch.remaining
	if diff := cmp.Diff(map[int]int{http.StatusOK: lists + pages}, watch.takeStatuses()); diff != "" {
		t.Errorf("the first poll (-want +got):\n%s", diff)
	}

	if jobs := pollJobs(t, p); len(jobs) != 151 {
		t.Errorf("%d jobs from cached responses", len(jobs))
	}

	if diff := cmp.Diff(map[int]int{http.StatusNotModified: lists + pages}, watch.takeStatuses()); diff != "" || watch.remaining != left {
		t.Errorf("the second poll: %s calls left of %s (-want +got):\n%s", watch.remaining, left, diff)
	}

	for _, job := range server.State().Jobs {
		if err := server.Cancel(job.ID); err != nil {
			t.Fatal(err)
		}
	}

	if jobs := pollJobs(t, p); len(jobs) != 151 || jobs[0].State != v1alpha1.JobCompleted {
		t.Errorf("%d jobs have ended", len(jobs))
	}

	watch.takeStatuses()
	pollJobs(t, p)

	if got := watch.takeStatuses(); got[http.StatusOK]+got[http.StatusNotModified] != lists {
		t.Errorf("completed runs are requested: %v", got)
	}
}

// A polled job equals the job of its webhook.
func TestPollAgreesWithWebhooks(t *testing.T) {
	t.Parallel()

	hooks := githubtest.NewReceiver(t)
	server := githubtest.New(t, sim.Options{Webhook: control.WebhookTarget{URL: hooks.URL}})
	p, _ := newCountedPoller(t, newOrganizationConfig(server), clocktesting.NewFakeClock(time.Now()))

	server.Queue(control.JobSpec{Labels: []string{"self-hosted", "x"}, Workflow: "Release", Name: "ship"})
	server.WaitUntil("the webhook came", func(s control.State) bool { return s.Webhooks.Delivered == 1 })

	webhook := hooks.Webhooks()[0]

	want, ok, err := github.Webhooks{}.ParseJob(webhook.Header, webhook.Body)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}

	if diff := cmp.Diff([]workload.Job{want}, pollJobs(t, p, githubtest.Repo)); diff != "" {
		t.Errorf("webhook (-), poll (+):\n%s", diff)
	}
}

func TestPollScopes(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, sim.Options{
		Enterprise: "corp",
		Repos: []sim.Repo{
			{FullName: "octo-org/a", Private: true}, {FullName: "octo-org/b", Private: true}, {FullName: "other/c", Private: true},
		},
	})
	for _, repo := range []string{"octo-org/a", "octo-org/b", "other/c"} {
		server.Queue(control.JobSpec{Repo: repo, Name: repo, Labels: []string{"x"}})
	}

	repositories := []string{"Octo-Org/B", "octo-org/a", "octo-org/a", "other/c", "not a repository", "../..", ""}

	for name, test := range map[string]struct {
		config github.Settings
		want   []string
	}{
		"repository: other repositories are not its own": {
			github.Settings{Owner: "octo-org", Repository: "a"}, []string{"octo-org/a Queued"},
		},
		"organization: its own of the given repositories": {
			github.Settings{Organization: "octo-org"}, []string{"octo-org/a Queued", "octo-org/b Queued"},
		},
		"enterprise: all given repositories": {
			github.Settings{Enterprise: "corp"}, []string{"octo-org/a Queued", "octo-org/b Queued", "other/c Queued"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			test.config.Token, test.config.APIURL = githubtest.PAT, server.URL
			p, _ := newCountedPoller(t, &test.config, clocktesting.NewFakeClock(time.Now()))

			if diff := cmp.Diff(test.want, listStates(pollJobs(t, p, repositories...))); diff != "" {
				t.Errorf("jobs (-want +got):\n%s", diff)
			}
		})
	}

	// GitHub only lists the jobs of repositories.
	for text, scope := range map[string]github.Settings{
		"organization octo-org": {Organization: "octo-org"}, "enterprise corp": {Enterprise: "corp"},
	} {
		scope.Token, scope.APIURL = githubtest.PAT, server.URL
		p, _ := newCountedPoller(t, &scope, clocktesting.NewFakeClock(time.Now()))
		_, err := p.ListJobs(t.Context(), []string{"not a repository"})
		checkError(t, err, workload.Rejected, workload.ReasonRepositoriesMissing, text+": the platform has no job list for it; name repositories")
	}
}

// A repository that cannot be read is named in the error, and the others are polled.
func TestPollErrors(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, sim.Options{PATs: []sim.PAT{
		{Token: githubtest.PAT, Scopes: []string{"repo", "admin:org"}},
		{Token: "github_pat_runnersonly0000000000000000", Permissions: map[string]string{"administration": "write"}},
	}})
	server.Queue(control.JobSpec{Labels: []string{"x"}})

	p, _ := newCountedPoller(t, newOrganizationConfig(server), clocktesting.NewFakeClock(time.Now()))
	jobs, err := p.ListJobs(t.Context(), []string{"octo-org/gone", githubtest.Repo})
	checkError(t, err, workload.Rejected, github.ReasonScope, "repository octo-org/gone")

	if len(jobs) != 1 {
		t.Errorf("%d jobs of the other repository", len(jobs))
	}

	config := newRepositoryConfig(server)
	config.Token = "github_pat_runnersonly0000000000000000"
	p, _ = newCountedPoller(t, config, clocktesting.NewFakeClock(time.Now()))
	_, err = p.ListJobs(t.Context(), nil)
	checkError(t, err, workload.Rejected, github.ReasonPermission, "repository permission Actions: read")
}

// If the rate limit does not allow polling all repositories, the next poll continues there.
func TestPollContinuesAfterRateLimit(t *testing.T) {
	t.Parallel()

	const many = 120

	clk := clocktesting.NewFakeClock(time.Now())
	options := sim.Options{SecondaryPoints: 900, Clock: clk}

	names := make([]string, 0, many)
	for i := range many {
		names = append(names, "octo-org/r"+strconv.Itoa(100+i))
		options.Repos = append(options.Repos, sim.Repo{FullName: names[i], Private: true})
	}

	server := githubtest.New(t, options)
	for _, name := range names {
		server.Queue(control.JobSpec{Repo: name, Name: name, Labels: []string{"x"}})
	}

	p, watch := newCountedPoller(t, newOrganizationConfig(server), clk)
	found := map[string]bool{}
	rounds := 0

	for ; len(found) < many && rounds < 4; rounds++ {
		for _, job := range pollJobs(t, p, names...) {
			found[job.Repository] = true
		}

		if got := watch.takeStatuses(); got[http.StatusOK]+got[http.StatusNotModified] > 450 || got[http.StatusForbidden] > 0 {
			t.Errorf("round %d: %v", rounds, got)
		}

		clk.Step(time.Minute)
	}

	if len(found) != many || rounds != 2 {
		t.Errorf("%d repositories were reached in %d rounds", len(found), rounds)
	}

	pollJobs(t, p, names...)

	if _, err := p.ListJobs(t.Context(), names); !workload.Is(err, workload.RateLimited) {
		t.Errorf("a poll right after: %v", err)
	}
}
