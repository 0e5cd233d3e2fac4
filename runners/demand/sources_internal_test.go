// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

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

		if err := sources.ingest(t.Context(), []loadedPool{newAcmePool()}, []workload.Job{polled}); err != nil {
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

// TestRefusedJobBlocksNoOther checks that a poll records all jobs except those that the API server refuses, and reports
// the refusal.
func TestRefusedJobBlocksNoOther(t *testing.T) {
	t.Parallel()

	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	jobs := []workload.Job{}
	for _, id := range []string{"1", "2", "3"} {
		jobs = append(jobs, workload.Job{
			Platform: v1alpha1.WorkloadGitHubActions, ID: id, Repository: "acme/app", State: v1alpha1.JobQueued, Labels: []string{"self-hosted"},
		})
	}

	quota := apierrors.NewForbidden(schema.GroupResource{Resource: "runnerjobs"}, "gh-1", errors.New("exceeded quota: few"))
	objects := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			if obj.GetName() == "gh-1" {
				return quota
			}

			return c.Create(ctx, obj, opts...)
		},
	}).Build()
	sources := &Sources{
		Client: objects, Live: objects, Platforms: Platforms{v1alpha1.WorkloadGitHubActions: github.Platform{}}, Clock: clock.RealClock{},
	}

	err := sources.ingest(t.Context(), []loadedPool{newAcmePool()}, jobs)
	if !errors.Is(err, quota) {
		t.Errorf("error %v, want %v", err, quota)
	}

	var recorded v1alpha1.RunnerJobList
	if err := objects.List(t.Context(), &recorded); err != nil || len(recorded.Items) != 2 {
		t.Errorf("%d jobs are recorded, error %v, want 2", len(recorded.Items), err)
	}
}

// newAcmePool returns a pool of the organization acme.
func newAcmePool() loadedPool {
	return loadedPool{object: &v1alpha1.RunnerPool{}, Pool: Pool{
		Namespace: "ns", Name: "pool", Rules: github.Platform{},
		Runner: workload.RunnerSpec{Platform: v1alpha1.WorkloadGitHubActions, Scope: workload.Scope{Organization: "acme"}, Labels: []string{"self-hosted"}},
	}}
}
