// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	sim "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/test/timing"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

const setName = "big-machines"

func newSetConfig(server *githubtest.Server) *github.Settings {
	out := newRepositoryConfig(server)
	out.ScaleSet = setName

	return out
}

func newSetRequest(name string) workload.RunnerRequest {
	return workload.RunnerRequest{Name: name, Labels: []string{setName}, Registration: v1alpha1.RegistrationJIT}
}

// jobLedger is a ledger: it stores the newest state of each job, and a completed job stays completed.
type jobLedger struct {
	mu       sync.Mutex
	jobs     map[string]workload.Job
	calls    int
	fail     error
	capacity int
}

func newJobLedger(capacity int) *jobLedger {
	return &jobLedger{jobs: map[string]workload.Job{}, capacity: capacity}
}

func (b *jobLedger) getCapacity() int {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.capacity
}

func (b *jobLedger) update(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

func (b *jobLedger) recordJobs(_ context.Context, jobs []workload.Job) error {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.calls++

	if b.fail != nil {
		return b.fail
	}

	for _, job := range jobs {
		if b.jobs[job.ID].State != v1alpha1.JobCompleted {
			b.jobs[job.ID] = job
		}
	}

	return nil
}

// listJobs returns the jobs in a state, by name.
func (b *jobLedger) listJobs(state v1alpha1.JobState) []workload.Job {
	b.mu.Lock()
	defer b.mu.Unlock()

	var out []workload.Job

	for _, job := range b.jobs {
		if job.State == state {
			out = append(out, job)
		}
	}

	slices.SortFunc(out, func(a, b workload.Job) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })

	return out
}

// startStream listens until stop is called. stop returns the result of StreamJobs.
func startStream(t *testing.T, p workload.Provider, to *jobLedger) (stop func() error) {
	t.Helper()

	listener := asInterface[workload.Streamer](t, p)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)

	go func() { done <- listener.StreamJobs(ctx, to.getCapacity, to.recordJobs) }()

	stop = sync.OnceValue(func() error {
		cancel()

		return <-done
	})

	t.Cleanup(func() { _ = stop() })

	return stop
}

func queueJobs(server *githubtest.Server, count int) []control.Job {
	return server.Queue(control.JobSpec{Labels: []string{setName}, Count: count})
}

// A job passes from the queue to its end through a scale set alone.
func TestScaleSetRunsAJob(t *testing.T) {
	t.Parallel()

	for name, offer := range map[string]bool{"assigned at once": false, "offered and acquired": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			server := githubtest.New(t, sim.Options{ScaleSets: sim.ScaleSetOptions{OfferJobs: offer}})
			p := newTestProvider(t, newSetConfig(server))

			if err := p.Validate(t.Context()); err != nil {
				t.Fatalf("Validate: %v", err)
			}

			jobs := newJobLedger(5)
			stop := startStream(t, p, jobs)
			queued := queueJobs(server, 1)

			timing.WaitUntil(t, "the job is reported", func() bool { return len(jobs.listJobs(v1alpha1.JobQueued)) == 1 })

			job := jobs.listJobs(v1alpha1.JobQueued)[0]
			want := workload.Job{
				Platform: v1alpha1.WorkloadGitHubActions, ID: job.ID, Name: "build", Repository: githubtest.Repo,
				RunID: strconv.FormatInt(queued[0].RunID, 10), Workflow: "ci.yml", Labels: []string{setName}, Queue: setName, State: v1alpha1.JobQueued,
				URL: fmt.Sprintf("%s/%s/actions/runs/%d", server.URL, githubtest.Repo, queued[0].RunID), QueuedAt: job.QueuedAt,
			}

			if diff := gocmp.Diff(want, job); diff != "" || !strings.HasPrefix(job.ID, "ss-1-") || job.QueuedAt == nil {
				t.Errorf("job (-want +got):\n%s", diff)
			}

			credential, err := p.IssueCredential(t.Context(), newSetRequest("vm-1"))
			if err != nil || credential.JITConfig == "" || credential.RunnerID == "" {
				t.Fatalf("Issue = %+v, %v", credential, err)
			}

			runner := githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", credential.JITConfig)
			if code := runner.Wait(); code != 0 {
				t.Fatalf("the runner ended with %d: %s", code, runner.Output())
			}

			timing.WaitUntil(t, "the job is completed", func() bool { return len(jobs.listJobs(v1alpha1.JobCompleted)) == 1 })

			ended := jobs.listJobs(v1alpha1.JobCompleted)[0]
			if ended.ID != job.ID || ended.Conclusion != "success" || ended.RunnerName != "vm-1" || ended.StartedAt == nil {
				t.Errorf("the job ended as %+v, want %s", ended, job.ID)
			}

			if err := stop(); !errors.Is(err, context.Canceled) {
				t.Errorf("Stream = %v", err)
			}
		})
	}
}

// A set can belong to a repository, an organization with its own runner group, or an enterprise, on
// github.com or a server.
func TestScaleSetScopes(t *testing.T) {
	t.Parallel()

	for name, edit := range map[string]func(*github.Settings){
		"organisation": func(s *github.Settings) { s.Organization, s.RunnerGroup = githubtest.Org, "trusted" },
		"enterprise":   func(s *github.Settings) { s.Enterprise = "octo" },
		"server": func(s *github.Settings) {
			s.Owner, s.Repository = "octo-org", "octo-repo"
			s.APIURL += "/api/v3"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			server := githubtest.New(t, sim.Options{
				PollTimeout: 50 * time.Millisecond, Enterprise: "octo", Groups: []sim.Group{{Owner: githubtest.Org, Name: "trusted"}},
			})
			settings := &github.Settings{Token: githubtest.PAT, APIURL: server.URL, ScaleSet: setName}
			edit(settings)

			p, jobs := newTestProvider(t, settings), newJobLedger(5)
			if err := p.Validate(t.Context()); err != nil {
				t.Fatalf("Validate: %v", err)
			}

			startStream(t, p, jobs)
			queueJobs(server, 1)
			timing.WaitUntil(t, "the job is reported", func() bool { return len(jobs.listJobs(v1alpha1.JobQueued)) == 1 })
			runJob(t, p, "vm-1")
			timing.WaitUntil(t, "the job is completed", func() bool { return len(jobs.listJobs(v1alpha1.JobCompleted)) == 1 })
		})
	}
}
