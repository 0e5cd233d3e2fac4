// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/generic"
)

func newClaim(uid string) *v1alpha1.MachineClaim {
	return &v1alpha1.MachineClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: uid, UID: types.UID(uid)}}
}

// However many claims request a job at once, and however old their caches are, no job is bound twice. A
// claim that requests a job again gets the same job.
func TestJobIsBoundOnce(t *testing.T) {
	t.Parallel()

	const many = 50

	w := newBindFixture(t, many)
	now := time.Unix(1e9, 0)

	var (
		mu    sync.Mutex
		group sync.WaitGroup
		got   = map[string]*scope{}
	)

	for i := range many {
		group.Go(func() {
			s := w.newScope(fmt.Sprintf("claim-%d", i))

			job, err := s.chooseJob(t.Context())
			if err != nil {
				t.Errorf("claim %s: %v", s.claim.Name, err)

				return
			}

			mu.Lock()
			defer mu.Unlock()

			if other, ok := got[job.Name]; ok {
				t.Errorf("job %s was bound to %s and %s", job.Name, other.claim.Name, s.claim.Name)
			}

			got[job.Name] = s
		})
	}

	group.Wait()

	if again, err := got["job-7"].chooseJob(t.Context()); err != nil || again.Name != "job-7" {
		t.Errorf("second request: %v, %v", again, err)
	}

	if _, err := w.newScope("late").chooseJob(t.Context()); !errors.Is(err, errNoJob) {
		t.Errorf("one claim too many: %v", err)
	}

	w.clock.SetTime(now.Add(maxCacheLag + time.Second))

	if _, err := w.newScope("late").chooseJob(t.Context()); err != nil {
		t.Errorf("a job whose binding the cache never showed: %v", err)
	}
}

// A binding whose write is repeated holds from then on, because the cache may show it as late as that of a first write.
func TestRepeatedBindingIsKept(t *testing.T) {
	t.Parallel()

	w := newBindFixture(t, 1)

	for range 3 {
		if job, err := w.newScope("first").chooseJob(t.Context()); err != nil || job.Name != "job-0" {
			t.Fatalf("got %v, %v; want job-0", job, err)
		}

		w.clock.SetTime(w.clock.Now().Add(maxCacheLag - time.Second))

		if job, err := w.newScope("second").chooseJob(t.Context()); !errors.Is(err, errNoJob) {
			t.Fatalf("another claim got %v, %v; want errNoJob", job, err)
		}
	}
}

// If there are fewer jobs than claims, each of the other claims knows that after the next computation, and does not wait
// until it computes the assignment itself.
func TestClaimsWithoutJobsKnowIt(t *testing.T) {
	t.Parallel()

	const many = 50

	w := newBindFixture(t, 0)
	outdated := 0

	for range 2 {
		for i := range many {
			if _, err := w.newScope(fmt.Sprintf("claim-%d", i)).chooseJob(t.Context()); !errors.Is(err, errNoJob) {
				t.Fatalf("claim %d: %v, want errNoJob", i, err)
			} else if !waitForJobs(err).IsDone() {
				outdated++
			}
		}

		w.clock.SetTime(w.clock.Now().Add(minAssignmentAge))
	}

	if outdated != many-1 || w.lists.Load() != 2 {
		t.Errorf("%d claims waited for the next assignment, and there were %d; want %d, 2", outdated, w.lists.Load(), many-1)
	}

	w.clock.SetTime(w.clock.Now().Add(2 * maxCacheLag))

	_, _ = w.newScope("later").chooseJob(t.Context())

	if len(w.r.assignments.askedAt) > 0 {
		t.Errorf("%d claims are not forgotten", len(w.r.assignments.askedAt))
	}
}

// Claims that request their jobs at the same time share the lists of jobs and claims, so the work does not grow with
// claims x claims.
func TestClaimsShareTheListOfJobs(t *testing.T) {
	t.Parallel()

	const many = 50

	w := newBindFixture(t, many)

	for i := range many {
		if job, err := w.newScope(fmt.Sprintf("claim-%d", i)).chooseJob(t.Context()); err != nil || job.Name != fmt.Sprintf("job-%d", i) {
			t.Fatalf("claim %d got %v, %v; want the oldest job that is left", i, job, err)
		}
	}

	if got := w.lists.Load(); got != 1 {
		t.Errorf("%d claims caused %d lists of claims, want 1", many, got)
	}
}

// A claim gets a job that is queued after the jobs were listed for other claims, as soon as they are listed again.
func TestNewJobIsFoundSoon(t *testing.T) {
	t.Parallel()

	w := newBindFixture(t, 1)

	if _, err := w.newScope("first").chooseJob(t.Context()); err != nil {
		t.Fatal(err)
	}

	w.createJob("job-new")

	_, err := w.newScope("second").chooseJob(t.Context())

	result := waitForJobs(err)
	if result.IsDone() || result.RequeueAfter() > maxAssignmentAge {
		t.Fatalf("the claim waits %s (%v), want at most %s", result.RequeueAfter(), err, maxAssignmentAge)
	}

	w.clock.SetTime(w.clock.Now().Add(result.RequeueAfter()))

	if job, err := w.newScope("second").chooseJob(t.Context()); err != nil || job.Name != "job-new" {
		t.Errorf("got %v, %v; want job-new", job, err)
	}

	w.clock.SetTime(w.clock.Now().Add(maxAssignmentAge))

	if _, err := w.newScope("third").chooseJob(t.Context()); !errors.Is(err, errNoJob) || !waitForJobs(err).IsDone() {
		t.Errorf("a claim without a job gets %v, want errNoJob", err)
	}
}

// bindFixture is a pool of runners that need jobs, and its queued jobs.
type bindFixture struct {
	t     *testing.T
	r     *Reconciler
	clock *clocktesting.FakePassiveClock
	// lists counts the lists of claims.
	lists atomic.Int32
}

func newBindFixture(t *testing.T, jobs int) *bindFixture {
	t.Helper()

	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	pool := &v1alpha1.RunnerPool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "linux"}}
	pool.Spec.Workload.Type, pool.Spec.Scaling.MaxReplicas = v1alpha1.WorkloadGeneric, 100
	pool.Spec.Workload.Config = &v1alpha1.WorkloadConfig{
		Generic: &v1alpha1.GenericConfig{Source: "acme", Command: []string{"true"}},
	}

	w := &bindFixture{t: t, clock: clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(pool).
		WithIndex(&v1alpha1.RunnerJob{}, "unfinished", func(client.Object) []string { return []string{"true"} }).
		WithInterceptorFuncs(interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				if _, ok := list.(*v1alpha1.MachineClaimList); ok {
					w.lists.Add(1)
				}

				return c.List(ctx, list, opts...)
			},
		}).Build()
	w.r = &Reconciler{
		Client: c, Live: c, Clock: w.clock,
		Platforms: demand.Platforms{v1alpha1.WorkloadGeneric: generic.Platform{}},
	}

	for i := range jobs {
		w.createJob(fmt.Sprintf("job-%d", i))
	}

	return w
}

// createJob creates a job that is queued after all earlier ones.
func (w *bindFixture) createJob(name string) {
	w.t.Helper()

	var jobs v1alpha1.RunnerJobList
	if err := w.r.Client.List(w.t.Context(), &jobs); err != nil {
		w.t.Fatal(err)
	}

	queued := metav1.NewTime(time.Unix(1e9+int64(len(jobs.Items)), 0))
	job := &v1alpha1.RunnerJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec:       v1alpha1.RunnerJobSpec{Platform: v1alpha1.WorkloadGeneric, ID: name, Repository: "acme", State: v1alpha1.JobQueued, QueuedAt: &queued},
	}

	if err := w.r.Client.Create(w.t.Context(), job); err != nil {
		w.t.Fatal(err)
	}
}

// newScope returns the scope of a reconcile of the claim with the name.
func (w *bindFixture) newScope(name string) *scope {
	claim := newClaim(name)
	claim.Spec.RunnerPoolRef = &v1alpha1.LocalObjectReference{Name: "linux"}

	return &scope{Reconciler: w.r, claim: claim}
}

// issueCredential issues the credential of the claim's machine for the job.
func (w *bindFixture) issueCredential(s *scope, job *v1alpha1.RunnerJob) {
	w.t.Helper()

	provider, err := generic.Platform{}.Open(workload.Config{})
	if err == nil {
		_, err = s.issueCredential(w.t.Context(), provider, workload.RunnerRequest{Name: "runner", Job: &job.Spec}, job)
	}

	if err != nil {
		w.t.Fatal(err)
	}
}

// The job of a claim that is deleted before its machine was started is free for the next claim at once.
func TestDeletedClaimReleasesItsJob(t *testing.T) {
	t.Parallel()

	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	now := time.Now()

	for name, tc := range map[string]struct {
		times      *v1alpha1.MachineTimes
		isIssued   bool
		isReleased bool
	}{
		"never requested":       {nil, false, true},
		"started":               {&v1alpha1.MachineTimes{Started: new(metav1.NewMicroTime(now))}, false, false},
		"its start is deferred": {nil, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			claim := newClaim("first")
			claim.DeletionTimestamp, claim.Finalizers = new(metav1.NewTime(now)), []string{"example.com/test"}
			claim.Status.Times = tc.times

			c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(claim).WithStatusSubresource(claim).Build()
			r := &Reconciler{Client: c, Live: c, Clock: clock.RealClock{}, StepReconciler: &step.Reconciler{Client: c, Controller: "machineclaim"}}

			job := &v1alpha1.RunnerJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "job"}}
			if !r.bindings.bind(claim, job, now) {
				t.Fatal("the first claim does not get the job")
			}

			if tc.isIssued {
				r.issued.add(claim)
			}

			if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(claim)}); err != nil {
				t.Fatal(err)
			}

			if got := r.bindings.bind(newClaim("second"), job, now); got != tc.isReleased {
				t.Errorf("the next claim gets the job: %t, want %t", got, tc.isReleased)
			}
		})
	}
}

// stateProvider is a hypervisor on which every machine has the same state, or none exists.
type stateProvider struct {
	hypervisor.Provider

	state hypervisor.State
}

func (p stateProvider) Get(context.Context, hypervisor.MachineRef) (hypervisor.Machine, error) {
	if p.state == "" {
		return hypervisor.Machine{}, hypervisor.Errorf(hypervisor.NotFound, "NotFound", "there is no machine")
	}

	return hypervisor.Machine{State: p.state}, nil
}

// If a job has ended, its machine is not bound to another job if it may have the credential of the first. A process may also
// end after it has started the machine, and before it has recorded that.
func TestStartedMachineKeepsItsJob(t *testing.T) {
	t.Parallel()

	const own, other = "c-0", "another-runner"

	for name, tc := range map[string]struct {
		state       v1alpha1.JobState
		runner      string
		machine     hypervisor.State
		isRequested bool
		isIssued    bool
		// want is empty if the machine ends.
		want string
	}{
		"the job is queued":                          {v1alpha1.JobQueued, "", hypervisor.StatePrepared, true, false, "job-0"},
		"its runner runs the job":                    {v1alpha1.JobRunning, own, hypervisor.StateRunning, true, false, "job-0"},
		"its runner has run the job":                 {v1alpha1.JobCompleted, own, hypervisor.StateStopped, true, false, "job-0"},
		"its runner has run the job, and it is gone": {v1alpha1.JobCompleted, own, "", true, false, "job-0"},
		"canceled before it was requested":           {v1alpha1.JobCompleted, "", "", false, false, "job-1"},
		"canceled before the clone":                  {v1alpha1.JobCompleted, "", "", true, false, "job-1"},
		"canceled before the start":                  {v1alpha1.JobCompleted, "", hypervisor.StatePrepared, true, false, ""},
		"canceled while its disk is cloned":          {v1alpha1.JobCompleted, "", hypervisor.StateCreating, true, false, ""},
		"canceled after its credential was issued":   {v1alpha1.JobCompleted, "", "", true, true, ""},
		"canceled after the start":                   {v1alpha1.JobCompleted, "", hypervisor.StateRunning, true, false, "job-0"},
		"taken by another after the start":           {v1alpha1.JobRunning, other, hypervisor.StateStopped, true, false, "job-0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newBindFixture(t, 2)

			var job v1alpha1.RunnerJob
			if err := w.r.Client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "job-0"}, &job); err != nil {
				t.Fatal(err)
			}

			job.Spec.State, job.Spec.RunnerName = tc.state, tc.runner
			if err := w.r.Client.Update(t.Context(), &job); err != nil {
				t.Fatal(err)
			}

			s := w.newScope("c")
			s.provider = stateProvider{state: tc.machine}
			s.claim.Status.BootstrapInfo = &v1alpha1.BootstrapInfo{RunnerName: own, BoundJob: "job-0"}

			if tc.isRequested {
				s.times().CloneStarted = s.now()
			}

			if tc.isIssued {
				w.issueCredential(s, &job)
			}

			isStarted, hasCredential, err := s.inspectWithoutJob(t.Context())

			got := ""
			if err == nil && (isStarted || !hasCredential) {
				if !isStarted {
					_, err = s.ensureBoundJob(t.Context())
				}

				got = s.claim.Status.BootstrapInfo.BoundJob
			}

			if err != nil || got != tc.want {
				t.Errorf("the machine is bound to %q (%v), want %q", got, err, tc.want)
			}
		})
	}
}

func TestNews(t *testing.T) {
	t.Parallel()

	now := metav1.NewTime(time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))
	micro := metav1.NewMicroTime(now.Time)
	job := func(state v1alpha1.JobState, change func(*v1alpha1.RunnerJobSpec)) v1alpha1.RunnerJobSpec {
		out := v1alpha1.RunnerJobSpec{Platform: v1alpha1.WorkloadGeneric, ID: "1", State: state}
		if change != nil {
			change(&out)
		}

		return out
	}
	claim := func(phase guest.Phase, result string, change func(*v1alpha1.MachineClaim)) *v1alpha1.MachineClaim {
		out := newClaim("c")
		out.Status.BootstrapInfo = &v1alpha1.BootstrapInfo{RunnerName: "r", GuestPhase: string(phase), JobResult: result}
		out.Status.Times = &v1alpha1.MachineTimes{}

		if change != nil {
			change(out)
		}

		return out
	}
	gone := func(c *v1alpha1.MachineClaim) { c.DeletionTimestamp = &now }

	cases := map[string]struct {
		job   v1alpha1.RunnerJobSpec
		claim *v1alpha1.MachineClaim
		want  string
	}{
		"still booting":                  {job(v1alpha1.JobQueued, nil), claim(guest.PhaseListening, "", nil), ""},
		"it runs":                        {job(v1alpha1.JobQueued, nil), claim(guest.PhaseRunning, "", nil), "Running r "},
		"known to run":                   {job(v1alpha1.JobRunning, func(j *v1alpha1.RunnerJobSpec) { j.RunnerName = "r" }), claim(guest.PhaseRunning, "", nil), ""},
		"it is done":                     {job(v1alpha1.JobQueued, nil), claim(guest.PhaseFinished, "success", nil), "Completed r success"},
		"known to be over":               {job(v1alpha1.JobCompleted, nil), claim(guest.PhaseFinished, "failure", nil), ""},
		"the machine never began":        {job(v1alpha1.JobQueued, nil), claim(guest.PhaseStarted, "", gone), ""},
		"the machine died in it":         {job(v1alpha1.JobRunning, nil), claim(guest.PhaseRunning, "", gone), "Completed r lost"},
		"only its job says that it runs": {job(v1alpha1.JobRunning, func(j *v1alpha1.RunnerJobSpec) { j.RunnerName = "r" }), claim("", "", gone), "Completed r lost"},
		"another runner runs its job":    {job(v1alpha1.JobRunning, func(j *v1alpha1.RunnerJobSpec) { j.RunnerName = "s" }), claim("", "", gone), ""},
		"it ended without a word":        {job(v1alpha1.JobRunning, nil), claim("", "", func(c *v1alpha1.MachineClaim) { c.Status.Times.JobStarted, c.Status.Times.Ended = &micro, &micro }), "Completed r lost"},
		"its platform reports the end":   {job(v1alpha1.JobRunning, func(j *v1alpha1.RunnerJobSpec) { j.Platform, j.RunnerName = v1alpha1.WorkloadBuildkite, "r" }), claim(guest.PhaseRunning, "", gone), ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got := ""
			if update, ok := newJobUpdate(tc.job, tc.claim, tc.job.Platform != v1alpha1.WorkloadBuildkite, now); ok {
				got = fmt.Sprintf("%s %s %s", update.State, update.RunnerName, update.Conclusion)
			}

			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestStoppedMachinesShareListings checks that, however many machines stop, their runners are listed at
// most once per minListInterval, that no machine waits longer than this, and that each list was started
// after the stop of the machines that use it.
func TestStoppedMachinesShareListings(t *testing.T) {
	const (
		machines = 200
		apart    = 50 * time.Millisecond
	)

	var shared runnerLists

	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	waiting := map[time.Time]time.Time{} // time of the stop: time of the next reconcile
	made := 0

	for now := begin; now.Before(begin.Add(machines*apart + minListInterval)); now = now.Add(apart) {
		if now.Before(begin.Add(machines * apart)) {
			waiting[now.Add(-time.Millisecond)] = now
		}

		for stopped, next := range waiting {
			if now.Before(next) {
				continue
			}

			before := shared.startedAt["github acme"]

			if remaining := shared.reserve("github acme", stopped, now); remaining > 0 {
				waiting[stopped] = now.Add(remaining)

				continue
			}

			if at := shared.startedAt["github acme"]; at != before {
				made++
			} else if !at.After(stopped) {
				t.Fatalf("a machine that stopped at %s used the list of %s", stopped, at)
			}

			if waited := now.Sub(stopped); waited > minListInterval+apart {
				t.Fatalf("a machine waited %s for its list", waited)
			}

			delete(waiting, stopped)
		}
	}

	if len(waiting) > 0 {
		t.Errorf("%d machines never got a list", len(waiting))
	}

	if most := int(machines*apart/minListInterval) + 2; made > most || made < 2 {
		t.Errorf("%d lists for %d machines in %s, want 2 to %d", made, machines, machines*apart, most)
	}

	shared.reserve("gitlab acme", begin.Add(time.Hour), begin.Add(time.Hour))

	if len(shared.startedAt) != 1 {
		t.Errorf("%d platforms are stored an hour later, want the one that was listed", len(shared.startedAt))
	}
}

// TestFirstStopDoesNotWait checks that a machine does not wait if no other machine has stopped.
func TestFirstStopDoesNotWait(t *testing.T) {
	var shared runnerLists

	now := time.Now()
	if remaining := shared.reserve("github acme", now.Add(-time.Second), now); remaining != 0 {
		t.Errorf("waits %s", remaining)
	}

	if remaining := shared.reserve("gitlab acme", now.Add(-time.Second), now); remaining != 0 {
		t.Errorf("a machine of another platform waits %s", remaining)
	}
}
