// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	sim "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

// singleProvider returns the same provider for all pools.
type singleProvider struct{ workload.Provider }

func (p singleProvider) ProviderFor(context.Context, *v1alpha1.HypervisorMachineTemplate, v1alpha1.Workload) (workload.Provider, error) {
	return p.Provider, nil
}

func newGitHubProvider(t *testing.T, githubServer *githubtest.Server, repository string) workload.Provider {
	t.Helper()

	owner, name, _ := strings.Cut(repository, "/")

	out, err := github.New(github.Config{Settings: &github.Settings{
		Token: githubtest.PAT, Owner: owner, Repository: name, APIURL: githubServer.URL,
	}})
	if err != nil {
		t.Fatal(err)
	}

	return out
}

// newIndexedClient returns the operator's client with the indexes of its cache.
func newIndexedClient(t *testing.T) client.Client {
	t.Helper()

	return kube.NewIndexedClient(t, operator, demand.AddIndexes)
}

func newReconciler(t *testing.T, clk *clocktesting.FakePassiveClock, providers demand.Providers) *demand.JobReconciler {
	t.Helper()

	return &demand.JobReconciler{
		Client: newIndexedClient(t), Clock: clk, Providers: providers, Platforms: newPlatforms(),
		StepReconciler: &step.Reconciler{Client: operator, Controller: "runnerjob", Clock: clk},
	}
}

// reconcileTwice reconciles the job twice, so that deferred changes are written too.
func reconcileTwice(t *testing.T, clk *clocktesting.FakePassiveClock, r *demand.JobReconciler, key client.ObjectKey) {
	t.Helper()
	reconcileJob(t, r, key)
	clk.SetTime(clk.Now().Add(40 * time.Second))
	reconcileJob(t, r, key)
}

// createTemplate creates a template that the API server accepts.
func createTemplate(t *testing.T, namespace string) {
	t.Helper()

	out := &v1alpha1.HypervisorMachineTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "linux"},
		Spec: v1alpha1.HypervisorMachineTemplateSpec{
			HypervisorClusterRef: v1alpha1.LocalObjectReference{Name: "lab"},
			Template:             v1alpha1.TemplateSource{Proxmox: &v1alpha1.ProxmoxTemplate{TemplateName: "linux"}},
			Resources:            v1alpha1.MachineResources{CPU: 1, Memory: resource.MustParse("1Gi")},
		},
	}
	env.Create(t, out)
}

func createJob(t *testing.T, namespace string, spec workload.Job) client.ObjectKey {
	t.Helper()

	received := metav1.NewMicroTime(time.Now())
	spec.ReceivedAt = &received
	out := &v1alpha1.RunnerJob{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: newPlatforms().JobName(spec)}, Spec: spec}
	env.Create(t, out)

	return client.ObjectKeyFromObject(out)
}

func reconcileJob(t *testing.T, r *demand.JobReconciler, key client.ObjectKey) reconcile.Result {
	t.Helper()

	result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
	if err != nil {
		t.Fatalf("Reconcile: %v", err)
	}

	return result
}

func getJob(t *testing.T, key client.ObjectKey) *v1alpha1.RunnerJob {
	t.Helper()

	out := &v1alpha1.RunnerJob{}
	if err := env.Client.Get(t.Context(), key, out); err != nil {
		t.Fatal(err)
	}

	return out
}

func TestJobIsMatched(t *testing.T) {
	t.Parallel()

	namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
	createPool(t, namespace, "linux", repository, "s", "linux")

	spec := newJob(v1alpha1.JobQueued, func(j *workload.Job) { j.Repository = repository })
	fits := createJob(t, namespace, spec)
	spec.ID, spec.Labels = "8", []string{"self-hosted", "s390x"}
	fitsNot := createJob(t, namespace, spec)

	r := newReconciler(t, clocktesting.NewFakePassiveClock(time.Now()), nil)

	if result := reconcileJob(t, r, fits); result.RequeueAfter <= 4*time.Minute || result.RequeueAfter > 5*time.Minute {
		t.Errorf("requeued after %s, want the maximum time without an update", result.RequeueAfter)
	}

	got := getJob(t, fits)
	if got.Status.Pool != "linux" {
		t.Errorf("pool = %q", got.Status.Pool)
	}

	kube.CheckCondition(t, got.Status.Conditions, demand.ConditionMatched, metav1.ConditionTrue, demand.ReasonMatched, "linux")
	kube.CheckCondition(t, got.Status.Conditions, v1alpha1.ConditionReady, metav1.ConditionTrue, demand.ReasonWaitingForMachine, "")

	reconcileJob(t, r, fitsNot)
	kube.CheckCondition(t, getJob(t, fitsNot).Status.Conditions, demand.ConditionMatched, metav1.ConditionFalse, demand.ReasonNoLabels, "lacks [s390x]")

	// Another pool is created.
	createPool(t, namespace, "mainframe", repository, "s", "s390x")
	reconcileJob(t, r, fitsNot)

	if got := getJob(t, fitsNot).Status.Pool; got != "mainframe" {
		t.Errorf("pool = %q after the pool was created", got)
	}
}

func TestJobIsDeletedAfterRetention(t *testing.T) {
	t.Parallel()

	now := time.Now()
	clk := clocktesting.NewFakePassiveClock(now)
	r := newReconciler(t, clk, nil)
	key := createJob(t, env.Namespace(t), newJob(v1alpha1.JobCompleted, func(j *workload.Job) {
		j.CompletedAt = &metav1.Time{Time: now}
	}))

	clk.SetTime(now.Add(23 * time.Hour))

	if result := reconcileJob(t, r, key); result.RequeueAfter <= 59*time.Minute || result.RequeueAfter > time.Hour+time.Second {
		t.Errorf("requeued after %s, want an hour", result.RequeueAfter)
	}

	getJob(t, key)
	clk.SetTime(now.Add(24*time.Hour + time.Second))
	reconcileJob(t, r, key)

	if err := env.Client.Get(t.Context(), key, &v1alpha1.RunnerJob{}); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("the job is still there: %v", err)
	}

	reconcileJob(t, r, key) // it is deleted, so there is nothing to do
}

// A job whose webhooks were lost is confirmed by its platform.
func TestSilentJobIsConfirmed(t *testing.T) {
	t.Parallel()

	namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
	createPool(t, namespace, "linux", repository, "s", "linux")
	createTemplate(t, namespace)

	githubServer := githubtest.New(t, sim.Options{Repos: []sim.Repo{{FullName: repository}}})
	provider := newGitHubProvider(t, githubServer, repository)
	queued := githubServer.Queue(control.JobSpec{Repo: repository, Labels: []string{"linux"}, Duration: time.Millisecond})[0]
	key := createJob(t, namespace, newJob(v1alpha1.JobQueued, func(j *workload.Job) {
		j.ID, j.Repository, j.Labels = strconv.FormatInt(queued.ID, 10), repository, []string{"linux"}
	}))

	now := time.Now()
	clk := clocktesting.NewFakePassiveClock(now)
	r := newReconciler(t, clk, singleProvider{provider})
	calls := func() int { return githubServer.State().Requests["actions/get-job-for-workflow-run"] }

	reconcileJob(t, r, key)

	if calls() != 0 {
		t.Error("GitHub was called for a recent job")
	}

	clk.SetTime(now.Add(5*time.Minute + time.Second))

	if result := reconcileJob(t, r, key); result.RequeueAfter != 10*time.Minute {
		t.Errorf("requeued after %s, want twice the maximum time without an update", result.RequeueAfter)
	}

	kube.CheckCondition(t, getJob(t, key).Status.Conditions, demand.ConditionConfirmed, metav1.ConditionTrue, "PlatformQueried", "Queued")
	reconcileJob(t, r, key)

	if calls() != 1 {
		t.Errorf("GitHub was called %d times, want once", calls())
	}

	issued, err := provider.IssueCredential(t.Context(), workload.RunnerRequest{Name: "r1", Labels: github.MergeLabels([]string{"linux"})})
	if err != nil {
		t.Fatal(err)
	}

	githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", issued.JITConfig)
	githubServer.WaitUntil("the job is over", func(s control.State) bool { return s.Jobs[0].Status == "completed" })

	clk.SetTime(now.Add(16 * time.Minute))
	reconcileJob(t, r, key)

	if got := getJob(t, key).Spec; got.State != v1alpha1.JobCompleted || got.RunnerName != "r1" || got.Conclusion != "success" {
		t.Errorf("job = %+v", got)
	}
}

// A job gets a machine even if its platform is unreachable.
func TestSilentJobOfUnreachablePlatform(t *testing.T) {
	t.Parallel()

	namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
	createPool(t, namespace, "linux", repository, "s", "linux")
	createTemplate(t, namespace)

	githubServer := githubtest.New(t, sim.Options{
		Repos: []sim.Repo{{FullName: repository}}, PATs: []sim.PAT{{Token: githubtest.PAT, Permissions: map[string]string{"administration": "write"}}},
	})
	queued := githubServer.Queue(control.JobSpec{Repo: repository, Labels: []string{"linux"}})[0]
	key := createJob(t, namespace, newJob(v1alpha1.JobQueued, func(j *workload.Job) {
		j.ID, j.Repository, j.Labels = strconv.FormatInt(queued.ID, 10), repository, []string{"linux"}
	}))

	r := newReconciler(t, clocktesting.NewFakePassiveClock(time.Now().Add(time.Hour)), singleProvider{newGitHubProvider(t, githubServer, repository)})
	reconcileJob(t, r, key)

	got := getJob(t, key)
	kube.CheckCondition(t, got.Status.Conditions, demand.ConditionConfirmed, metav1.ConditionFalse, github.ReasonPermission, "Actions: read")
	kube.CheckCondition(t, got.Status.Conditions, demand.ConditionMatched, metav1.ConditionTrue, demand.ReasonMatched, "linux")
}

// A job that its platform no longer knows requests machines only until it counts as lost.
func TestLostJobEnds(t *testing.T) {
	t.Parallel()

	namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
	createPool(t, namespace, "linux", repository, "s", "linux")
	createTemplate(t, namespace)

	githubServer := githubtest.New(t, sim.Options{
		Repos: []sim.Repo{{FullName: repository, Private: true}}, PATs: []sim.PAT{{Token: githubtest.PAT, Repos: []string{"acme/other"}}},
	})
	now := time.Now()
	clk := clocktesting.NewFakePassiveClock(now.Add(47 * time.Hour))
	r := newReconciler(t, clk, singleProvider{newGitHubProvider(t, githubServer, repository)})
	key := createJob(t, namespace, newJob(v1alpha1.JobQueued, func(j *workload.Job) { j.Repository = repository }))

	reconcileJob(t, r, key)

	got := getJob(t, key)
	if got.Spec.State != v1alpha1.JobQueued {
		t.Errorf("state = %s although the platform may hide the job", got.Spec.State)
	}

	kube.CheckCondition(t, got.Status.Conditions, demand.ConditionConfirmed, metav1.ConditionFalse, workload.ReasonJobMissing, "Actions: read")
	clk.SetTime(now.Add(50 * time.Hour))
	reconcileJob(t, r, key)

	if got := getJob(t, key).Spec; got.State != v1alpha1.JobCompleted || got.Conclusion != "lost" {
		t.Errorf("job = %s %s", got.State, got.Conclusion)
	}
}

// A job whose run was deleted requests machines only until its platform is asked.
func TestDeletedJobEnds(t *testing.T) {
	t.Parallel()

	namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
	createPool(t, namespace, "linux", repository, "s", "linux")
	createTemplate(t, namespace)

	githubServer := githubtest.New(t, sim.Options{Repos: []sim.Repo{{FullName: repository}}})
	now := time.Now()
	clk := clocktesting.NewFakePassiveClock(now.Add(6 * time.Minute))
	r := newReconciler(t, clk, singleProvider{newGitHubProvider(t, githubServer, repository)})
	key := createJob(t, namespace, newJob(v1alpha1.JobQueued, func(j *workload.Job) { j.Repository = repository }))

	reconcileJob(t, r, key)

	if got := getJob(t, key).Spec; got.State != v1alpha1.JobCompleted || got.Conclusion != "lost" {
		t.Errorf("job = %s %s", got.State, got.Conclusion)
	}
}

// However many jobs have no updates, only a limited number of calls to platforms run at the same time.
func TestConfirmationCallsAreLimited(t *testing.T) {
	t.Parallel()

	const many = 12 // two more than the limit

	namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
	createPool(t, namespace, "linux", repository, "s", "linux")
	createTemplate(t, namespace)

	githubServer := githubtest.New(t, sim.Options{Repos: []sim.Repo{{FullName: repository}}})
	r := newReconciler(t, clocktesting.NewFakePassiveClock(time.Now().Add(time.Hour)), singleProvider{newGitHubProvider(t, githubServer, repository)})

	for _, queued := range githubServer.Queue(control.JobSpec{Repo: repository, Labels: []string{"linux"}, Count: many}) {
		key := createJob(t, namespace, newJob(v1alpha1.JobQueued, func(j *workload.Job) {
			j.ID, j.Repository, j.Labels = strconv.FormatInt(queued.ID, 10), repository, []string{"linux"}
		}))

		if result := reconcileJob(t, r, key); result.RequeueAfter <= 0 {
			t.Error("a job without updates is not requeued")
		}
	}

	if got := githubServer.State().Requests["actions/get-job-for-workflow-run"]; got != 10 {
		t.Errorf("GitHub was called %d times, want 10", got)
	}
}

func waitUntil(t testing.TB, done func() bool) {
	t.Helper()

	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the state was not reached")
		}
	}
}
