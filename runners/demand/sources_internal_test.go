// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

// pollCounter counts polls, which return err.
type pollCounter struct {
	workload.Provider

	polls int
	err   error
}

func (c *pollCounter) ListJobs(context.Context, []string) ([]workload.Job, error) {
	c.polls++

	return nil, c.err
}

// TestPollIntervalChanges checks that a changed interval counts from the last poll, and that the delay that a platform
// asks for is kept.
func TestPollIntervalChanges(t *testing.T) {
	t.Parallel()

	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	clk := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	sources := &Sources{Client: fake.NewClientBuilder().WithScheme(scheme).Build(), Clock: clk}
	sources.setDefaults()

	poller := &pollCounter{}
	src := &source{provider: poller}

	for _, tc := range []struct {
		name     string
		passed   time.Duration
		interval time.Duration
		err      error
		want     int
	}{
		{"the first poll", 0, 5 * time.Minute, nil, 1},
		{"not due", 10 * time.Second, 5 * time.Minute, nil, 1},
		{"the interval is shorter than what has passed", 0, 5 * time.Second, nil, 2},
		{"the interval is longer again", 10 * time.Second, time.Minute, nil, 2},
		{"the platform asks for a delay", time.Minute, time.Minute, &workload.Error{Kind: workload.RateLimited, RetryAfter: time.Hour}, 3},
		{"a shorter interval does not shorten the delay", 59 * time.Minute, time.Second, nil, 3},
		{"the delay is over", time.Minute, time.Second, nil, 4},
		{"the delay counts once", time.Second, time.Second, nil, 5},
	} {
		clk.Step(tc.passed)

		poller.err = tc.err
		pool := loadedPool{Pool: Pool{Namespace: "ns", Name: "pool"}, object: &v1alpha1.RunnerPool{}}
		pool.object.Spec.Demand = &v1alpha1.DemandSources{Polling: &v1alpha1.Polling{Interval: &metav1.Duration{Duration: tc.interval}}}

		sources.pollIfDue(t.Context(), src, []loadedPool{pool})

		if poller.polls != tc.want {
			t.Errorf("%s: %d polls, want %d", tc.name, poller.polls, tc.want)
		}
	}
}

// TestNamedRepositoriesArePolled checks that repositories of jobs, which webhooks can name in any number, do not displace
// the repositories that a pool names.
func TestNamedRepositoriesArePolled(t *testing.T) {
	t.Parallel()

	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	objects := fake.NewClientBuilder().WithScheme(scheme)

	for i := range 2 * maxPolledRepositories {
		objects.WithObjects(&v1alpha1.RunnerJob{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("gh-", i)},
			Spec:       v1alpha1.RunnerJobSpec{Platform: v1alpha1.WorkloadGitHubActions, ID: strconv.Itoa(i), Repository: fmt.Sprint("acme/", i)},
		})
	}

	pool := loadedPool{object: &v1alpha1.RunnerPool{}, Pool: Pool{
		Namespace: "ns", Name: "pool", Rules: github.Platform{},
		Runner: workload.RunnerSpec{Platform: v1alpha1.WorkloadGitHubActions, Scope: workload.Scope{Organization: "acme"}},
	}}
	pool.object.Spec.Demand = &v1alpha1.DemandSources{Polling: &v1alpha1.Polling{Repositories: []string{"acme/zebra", "acme/1", "acme/zebra"}}}

	got, err := (&Sources{Client: objects.Build()}).listRepositories(t.Context(), []loadedPool{pool})
	if err != nil {
		t.Fatal(err)
	}

	if len(got) != maxPolledRepositories || got[0] != "acme/1" || got[1] != "acme/zebra" {
		t.Errorf("%d repositories, first %v; want %d, and first those that the pool names", len(got), got[:2], maxPolledRepositories)
	}

	unique := map[string]bool{}
	for _, repository := range got {
		unique[repository] = true
	}

	if len(unique) != len(got) {
		t.Errorf("%d of %d repositories are in the list several times", len(got)-len(unique), len(got))
	}
}

// TestPollsFindJobsWhoseIDIsTaken checks that a job that a poll returns gets a RunnerJob of its own, although a webhook of
// another owner, which proves nothing about the job, has already used the ID.
func TestPollsFindJobsWhoseIDIsTaken(t *testing.T) {
	t.Parallel()

	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	newJob := func(repository string) workload.Job {
		return workload.Job{Platform: v1alpha1.WorkloadGitHubActions, ID: "6", Repository: repository, State: v1alpha1.JobQueued, Labels: []string{"self-hosted"}}
	}
	objects := fake.NewClientBuilder().WithScheme(scheme).WithObjects(&v1alpha1.RunnerJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "gh-6"}, Spec: newJob("attacker/app"),
	}).Build()
	sources := &Sources{
		Client: objects, Live: objects, Platforms: Platforms{v1alpha1.WorkloadGitHubActions: github.Platform{}}, Clock: clock.RealClock{},
	}

	for _, state := range []v1alpha1.JobState{v1alpha1.JobQueued, v1alpha1.JobCompleted} {
		polled := newJob("acme/app")
		polled.State = state

		if err := sources.ingest(t.Context(), []loadedPool{newAcmePool()}, []workload.Job{polled}, true); err != nil {
			t.Fatal(err)
		}

		var jobs v1alpha1.RunnerJobList
		if err := objects.List(t.Context(), &jobs); err != nil {
			t.Fatal(err)
		}

		got := map[string]v1alpha1.JobState{}
		for i := range jobs.Items {
			got[jobs.Items[i].Spec.Repository] += jobs.Items[i].Spec.State
		}

		if len(jobs.Items) != 2 || got["attacker/app"] != v1alpha1.JobQueued || got["acme/app"] != state {
			t.Errorf("after a poll with %s: %v", state, got)
		}
	}
}

// TestPollFindsJobsThatWereSetBack checks that a completed job starts over if a poll finds it queued long after its end,
// because the platform was restored from a backup. A message of a stream or a list that is out of date does not.
func TestPollFindsJobsThatWereSetBack(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		after    time.Duration
		isPolled bool
		want     v1alpha1.JobState
	}{
		"list out of date": {after: setBackAfter, isPolled: true, want: v1alpha1.JobCompleted},
		"late message":     {after: time.Hour, want: v1alpha1.JobCompleted},
		"set back":         {after: time.Hour, isPolled: true, want: v1alpha1.JobQueued},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			now := time.Now().Truncate(time.Second)
			job := newAcmeJobs("6")[0]
			known := &v1alpha1.RunnerJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "gh-6"}, Spec: job}
			known.Spec.State, known.Spec.RunnerName = v1alpha1.JobCompleted, "linux-a"
			updateMetadata(known, now)

			objects := fake.NewClientBuilder().WithScheme(newScheme(t)).WithObjects(known).Build()
			sources := &Sources{
				Client: objects, Live: objects, Platforms: Platforms{v1alpha1.WorkloadGitHubActions: github.Platform{}},
				Clock: clocktesting.NewFakeClock(now.Add(tc.after)),
			}

			if err := sources.ingest(t.Context(), []loadedPool{newAcmePool()}, []workload.Job{job}, tc.isPolled); err != nil {
				t.Fatal(err)
			}

			var got v1alpha1.RunnerJob
			if err := objects.Get(t.Context(), client.ObjectKeyFromObject(known), &got); err != nil {
				t.Fatal(err)
			}

			if got.Spec.State != tc.want || (got.Spec.RunnerName == "") != (tc.want == v1alpha1.JobQueued) {
				t.Errorf("the job is %+v, want it %s", got.Spec, tc.want)
			}
		})
	}
}

// TestRefusedJobBlocksNoOther checks that a poll records all jobs except those that the API server refuses, and reports
// the refusal.
func TestRefusedJobBlocksNoOther(t *testing.T) {
	t.Parallel()

	objects := &refusingClient{refused: map[string]bool{"gh-1": true}}
	sources := objects.newSources(t)

	err := sources.ingest(t.Context(), []loadedPool{newAcmePool()}, newAcmeJobs("1", "2", "3"), true)
	if !apierrors.IsForbidden(err) {
		t.Errorf("error %v, want the refusal", err)
	}

	objects.requireJobs(t, "gh-2", "gh-3")
}

// refusingClient is a client of an API server that refuses to create some jobs.
type refusingClient struct {
	client.Client

	refused map[string]bool
}

// newSources returns sources that use the client.
func (c *refusingClient) newSources(t *testing.T) *Sources {
	t.Helper()

	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	c.Client = fake.NewClientBuilder().WithScheme(scheme).Build()
	out := &Sources{Client: c, Live: c, Platforms: Platforms{v1alpha1.WorkloadGitHubActions: github.Platform{}}}
	out.setDefaults()

	return out
}

func (c *refusingClient) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	if c.refused[obj.GetName()] {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "runnerjobs"}, obj.GetName(), errors.New("exceeded quota: few"))
	}

	return c.Client.Create(ctx, obj, opts...)
}

func (c *refusingClient) requireJobs(t *testing.T, want ...string) {
	t.Helper()

	var list v1alpha1.RunnerJobList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}

	var got []string
	for i := range list.Items {
		got = append(got, list.Items[i].Name)
	}

	if !slices.Equal(got, want) {
		t.Errorf("the jobs %q are recorded, want %q", got, want)
	}
}

func newAcmeJobs(ids ...string) []workload.Job {
	var out []workload.Job
	for _, id := range ids {
		out = append(out, workload.Job{
			Platform: v1alpha1.WorkloadGitHubActions, ID: id, Repository: "acme/app", State: v1alpha1.JobQueued, Labels: []string{"self-hosted"},
		})
	}

	return out
}

// queueStream is the stream of a platform that sends one message after the other, each after the former one is acknowledged.
type queueStream struct {
	workload.Provider

	messages chan []workload.Job
}

func (q *queueStream) StreamJobs(
	ctx context.Context, _ func() int, handle func(context.Context, []workload.Job) error,
) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case jobs := <-q.messages:
			if err := handle(ctx, jobs); err != nil {
				return err
			}
		}
	}
}

// TestRefusedJobEndsNoStream checks that a stream continues after the API server has refused some of its jobs, and that these
// jobs are recorded when the API server accepts them, except one that has ended meanwhile.
func TestRefusedJobEndsNoStream(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		objects := &refusingClient{refused: map[string]bool{"gh-1": true, "gh-2": true}}
		sources := objects.newSources(t)
		pools := []loadedPool{newAcmePool()}
		src := &source{pools: pools}
		stream := &queueStream{messages: make(chan []workload.Job)}
		ctx, stop := context.WithCancel(t.Context())

		var group sync.WaitGroup

		group.Go(func() { sources.runStream(ctx, src, stream) })
		group.Go(func() { sources.retryRefused(ctx, src) })

		ended := newAcmeJobs("2")
		ended[0].State = v1alpha1.JobCompleted

		for _, jobs := range [][]workload.Job{newAcmeJobs("1", "2", "3"), newAcmeJobs("4"), ended} {
			stream.messages <- jobs

			synctest.Wait()
		}

		objects.requireJobs(t, "gh-3", "gh-4")

		if status, _ := sources.SourceStatus(pools[0].Key()); !apierrors.IsForbidden(status.Err) {
			t.Errorf("the status of the pool has the error %v, want the refusal", status.Err)
		}

		objects.refused = nil

		time.Sleep(time.Minute)
		synctest.Wait()
		objects.requireJobs(t, "gh-1", "gh-3", "gh-4")

		if status, _ := sources.SourceStatus(pools[0].Key()); status.Err != nil {
			t.Errorf("the status of the pool has the error %v", status.Err)
		}

		stop()
		group.Wait()
	})
}

// newAcmePool returns a pool of the organization acme.
func newAcmePool() loadedPool {
	return loadedPool{object: &v1alpha1.RunnerPool{}, Pool: Pool{
		Namespace: "ns", Name: "pool", Rules: github.Platform{},
		Runner: workload.RunnerSpec{Platform: v1alpha1.WorkloadGitHubActions, Scope: workload.Scope{Organization: "acme"}, Labels: []string{"self-hosted"}},
	}}
}
