// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/runners/report"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/workload"
)

// newMachineClaim returns a claim of the pool linux.
func newMachineClaim(namespace, name string) *v1alpha1.MachineClaim {
	return &v1alpha1.MachineClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.MachineClaimSpec{
			TemplateRef: v1alpha1.LocalObjectReference{Name: "linux"}, RunnerPoolRef: &v1alpha1.LocalObjectReference{Name: "linux"},
			WorkloadConfig: v1alpha1.Workload{
				Type: v1alpha1.WorkloadGitHubActions, Config: &v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{}},
			},
		},
	}
}

// createClaim creates a claim of the pool linux with the given status.
func createClaim(t *testing.T, namespace, name string, edits ...func(*v1alpha1.MachineClaimStatus)) *v1alpha1.MachineClaim {
	t.Helper()

	out := newMachineClaim(namespace, name)
	env.Create(t, out)
	setStatus(t, out, edits...)

	return out
}

func setStatus(t *testing.T, claim *v1alpha1.MachineClaim, edits ...func(*v1alpha1.MachineClaimStatus)) {
	t.Helper()

	if claim.Status.Times == nil {
		claim.Status.Times = &v1alpha1.MachineTimes{}
	}

	if claim.Status.BootstrapInfo == nil {
		claim.Status.BootstrapInfo = &v1alpha1.BootstrapInfo{}
	}

	for _, edit := range edits {
		edit(&claim.Status)
	}

	if err := env.Client.Status().Update(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
}

// newReadyCondition returns the condition Ready as the controller of a claim or a pool would set it.
func newReadyCondition(status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: "Ready", Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.Now()}
}

func formatMoments(job *v1alpha1.RunnerJob) []string {
	out := make([]string, 0, len(job.Status.Timeline))
	for _, e := range job.Status.Timeline {
		out = append(out, strings.TrimSpace(string(e.Moment)+" "+e.Message))
	}

	return out
}

// startJobController runs the controller in one namespace as the operator does, and records its events, until
// the returned function is called.
func startJobController(t *testing.T, namespace string) (*events.FakeRecorder, func()) {
	t.Helper()

	return startJobControllerWith(t, namespace, func(c client.Client) client.Client { return c })
}

// startJobControllerWith is startJobController with a client that wrap returns.
func startJobControllerWith(t *testing.T, namespace string, wrap func(client.Client) client.Client) (*events.FakeRecorder, func()) {
	t.Helper()

	recorder := events.NewFakeRecorder(100)

	return recorder, env.StartManager(t, namespace, func(_ context.Context, mgr ctrl.Manager) error {
		c := wrap(mgr.GetClient())

		return (&demand.JobReconciler{
			Client: c, Live: mgr.GetAPIReader(), Platforms: newPlatforms(), Recorder: recorder,
			StepReconciler: &step.Reconciler{Client: c, Controller: "runnerjob"},
			Logs:           &report.Logs{Client: c, Live: mgr.GetAPIReader()},
		}).SetupWithManager(mgr)
	})
}

// A pool changes while the job's match with it is being written. The index does not yet find the job by its
// pool, and the change reaches the job nevertheless.
func TestPoolChangesWhileAJobIsMatched(t *testing.T) {
	t.Parallel()

	namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
	pool := createPool(t, namespace, "linux", repository, "s", "linux")

	var once, closeOnce sync.Once

	enqueued := make(chan struct{})

	// The first status update that names the pool waits until the change of the pool has enqueued the waiting
	// jobs.
	change := func(ctx context.Context, obj client.Object) {
		if job, ok := obj.(*v1alpha1.RunnerJob); !ok || job.Status.Pool == "" {
			return
		}

		once.Do(func() {
			pool.Status.Conditions = []metav1.Condition{
				newReadyCondition(metav1.ConditionTrue, "Ready", ""), {
					Type: "Scaling", Status: metav1.ConditionTrue, Reason: demand.ReasonAtMaximum, Message: "full", LastTransitionTime: metav1.Now(),
				},
			}
			if err := env.Client.Status().Update(ctx, pool); err != nil {
				t.Error(err)
			}

			select {
			case <-enqueued:
			case <-ctx.Done():
			}
		})
	}

	_, stop := startJobControllerWith(t, namespace, func(c client.Client) client.Client {
		return interceptor.NewClient(noWatchClient{c}, interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				err := c.List(ctx, list, opts...)

				options := (&client.ListOptions{}).ApplyOptions(opts)
				if _, ok := list.(*v1alpha1.RunnerJobList); ok && options.FieldSelector != nil {
					if _, ok := options.FieldSelector.RequiresExactMatch("waitingPool"); ok {
						closeOnce.Do(func() { close(enqueued) })
					}
				}

				return err
			},
			SubResourcePatch: func(
				ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption,
			) error {
				change(ctx, obj)

				return c.SubResource(sub).Patch(ctx, obj, patch, opts...)
			},
		})
	})
	defer stop()

	key := createJob(t, namespace, newJob(v1alpha1.JobQueued, func(j *workload.Job) { j.Repository = repository }))
	waitUntil(t, func() bool {
		return slices.ContainsFunc(formatMoments(getJob(t, key)), func(m string) bool { return strings.HasPrefix(m, "Waiting AtMaximum") })
	})
}

// noWatchClient is a client without watches.
type noWatchClient struct{ client.Client }

func (noWatchClient) Watch(context.Context, client.ObjectList, ...client.ListOption) (watch.Interface, error) {
	return nil, errors.ErrUnsupported
}

// The complete timeline of a job has what its platform, its pool and its machine report.
func TestTimelineOfJob(t *testing.T) {
	t.Parallel()

	namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
	recorder, stop := startJobController(t, namespace)
	key := createJob(t, namespace, newJob(v1alpha1.JobQueued, func(j *workload.Job) { j.Repository = repository }))
	waitForMoment := func(moment string) {
		t.Helper()
		waitUntil(t, func() bool {
			return slices.ContainsFunc(formatMoments(getJob(t, key)), func(m string) bool { return strings.HasPrefix(m, moment) })
		})
	}

	waitForMoment("Waiting NoPool: ")

	pool := createPool(t, namespace, "linux", repository, "s", "linux")

	waitForMoment("Decided RunnerPool linux")

	pool.Status.Conditions = []metav1.Condition{
		newReadyCondition(metav1.ConditionTrue, "Ready", ""), {
			Type: "Scaling", Status: metav1.ConditionTrue, Reason: demand.ReasonAtMaximum, Message: "3 jobs wait", LastTransitionTime: metav1.Now(),
		},
	}
	if err := env.Client.Status().Update(t.Context(), pool); err != nil {
		t.Fatal(err)
	}

	waitForMoment("Waiting AtMaximum: RunnerPool linux has all machines that scaling.maxReplicas allows")

	machine := createClaim(t, namespace, "linux-a", func(s *v1alpha1.MachineClaimStatus) {
		s.BootstrapInfo.RunnerName = "runner-a"
		s.VMRef = &v1alpha1.VMReference{HypervisorCluster: "lab", VMID: "105", Node: "pve1"}
		s.Times.Cloned, s.Times.Started, s.Times.Ready = newMicroTimeAt(2), newMicroTimeAt(3), newMicroTimeAt(4)
	})
	setStatus(t, machine, func(s *v1alpha1.MachineClaimStatus) {
		s.BootstrapInfo.Job, s.Times.JobStarted = key.Name, newMicroTimeAt(5)
	})
	waitForMoment("Started runner runner-a")

	if err := env.Client.Delete(t.Context(), machine); err != nil {
		t.Fatal(err)
	}

	waitForMoment("Destroyed MachineClaim linux-a: VM 105 is gone")

	// The platform reports the end after everything else.
	over := getJob(t, key)
	over.Spec.State, over.Spec.RunnerName, over.Spec.Conclusion = v1alpha1.JobCompleted, "runner-a", "success"
	over.Spec.StartedAt, over.Spec.CompletedAt = newTimeAt(5), newTimeAt(9)

	if err := env.Client.Update(t.Context(), over); err != nil {
		t.Fatal(err)
	}

	waitForMoment("Finished success")
	stop()

	got := getJob(t, key)
	kube.CheckCondition(t, got.Status.Conditions, demand.ConditionServed, metav1.ConditionTrue, demand.ReasonCompleted, "")

	if got.Status.Claim != "linux-a" {
		t.Errorf("claim = %q", got.Status.Claim)
	}

	moments := formatMoments(got)
	slices.Sort(moments)

	want := []string{
		"Booted MachineClaim linux-a: VM 105 on node pve1", "Cloned MachineClaim linux-a: VM 105 on node pve1",
		"Decided RunnerPool linux serves the job", "Destroyed MachineClaim linux-a: VM 105 is gone", "Finished success",
		"Queued", "Received", "Registered MachineClaim linux-a: runner runner-a", "Started runner runner-a",
	}
	if diff := cmp.Diff(want, slices.DeleteFunc(moments, func(m string) bool { return strings.HasPrefix(m, "Waiting") })); diff != "" {
		t.Errorf("timeline -want +got:\n%s", diff)
	}

	close(recorder.Events)

	var emitted []string
	for event := range recorder.Events {
		emitted = append(emitted, strings.Join(strings.Fields(event)[:3], " "))
	}

	// A missing pool is a warning. Only the pool itself emits an event about its maximum.
	if diff := cmp.Diff([]string{"Warning Waiting NoPool:"}, emitted); diff != "" {
		t.Errorf("events -want +got:\n%s", diff)
	}
}

// A reconcile without changes writes nothing, however often it runs.
func TestUnchangedJobIsNotWritten(t *testing.T) {
	t.Parallel()

	namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
	createPool(t, namespace, "linux", repository, "s", "linux")
	createClaim(t, namespace, "linux-a", func(s *v1alpha1.MachineClaimStatus) {
		s.BootstrapInfo.RunnerName, s.Times.Started, s.Times.JobStarted = "runner-a", newMicroTimeAt(3.123456), newMicroTimeAt(5)
	})

	clk := clocktesting.NewFakePassiveClock(time.Now())
	r := newReconciler(t, clk, nil)

	for name, spec := range map[string]workload.Job{
		"waits for a machine": newJob(v1alpha1.JobQueued, func(j *workload.Job) { j.ID, j.Repository = "1", repository }),
		"has no pool":         newJob(v1alpha1.JobQueued, func(j *workload.Job) { j.ID, j.Repository = "2", "other/app" }),
		"is held":             newJob(v1alpha1.JobWaiting, func(j *workload.Job) { j.ID, j.Repository = "3", repository }),
		"runs":                newJob(v1alpha1.JobRunning, func(j *workload.Job) { j.ID, j.Repository, j.RunnerName = "4", repository, "runner-a" }),
		"is over": newJob(v1alpha1.JobCompleted, func(j *workload.Job) {
			j.ID, j.Repository, j.RunnerName, j.CompletedAt = "5", repository, "runner-gone", &metav1.Time{Time: time.Now()}
		}),
	} {
		key := createJob(t, namespace, spec)
		reconcileTwice(t, clk, r, key)

		first := getJob(t, key)
		if len(first.Status.Timeline) == 0 {
			t.Errorf("job that %s: it has no timeline", name)
		}

		for range 3 {
			clk.SetTime(clk.Now().Add(time.Second))
			reconcileJob(t, r, key)
		}

		if again := getJob(t, key); again.ResourceVersion != first.ResourceVersion {
			t.Errorf("job that %s: it was written again:\n%s", name, cmp.Diff(first.Status, again.Status))
		}
	}
}

// The reason for which a pool creates no machines is the reason for which its jobs wait.
func TestCausesOfWaiting(t *testing.T) {
	t.Parallel()

	ready := newReadyCondition(metav1.ConditionTrue, "Ready", "")
	scaling := func(reason string) []metav1.Condition {
		return []metav1.Condition{ready, {Type: "Scaling", Status: metav1.ConditionTrue, Reason: reason, LastTransitionTime: metav1.Now()}}
	}
	claimIs := func(reason, message string) func(*v1alpha1.MachineClaimStatus) {
		return func(s *v1alpha1.MachineClaimStatus) {
			s.Phase = v1alpha1.MachineClaimPending
			s.Conditions = []metav1.Condition{newReadyCondition(metav1.ConditionFalse, reason, message)}
		}
	}

	cases := map[string]struct {
		paused  bool
		pool    []metav1.Condition
		claims  []func(*v1alpha1.MachineClaimStatus)
		queued  int32
		busy    int32
		reason  string
		message string
	}{
		"paused":                  {paused: true, pool: scaling("Paused"), reason: "Paused", message: "set spec.paused to false"},
		"the template is missing": {pool: []metav1.Condition{newReadyCondition(metav1.ConditionFalse, "TemplateNotFound", "create it")}, reason: "TemplateNotFound", message: "RunnerPool linux is not ready: create it"},
		"an invalid schedule does not block jobs": {pool: []metav1.Condition{newReadyCondition(metav1.ConditionFalse, "ScheduleInvalid", "x")}, reason: demand.ReasonWaitingForMachine, message: "provides a machine"},
		"over the quota":               {pool: []metav1.Condition{newReadyCondition(metav1.ConditionFalse, "QuotaExceeded", "exceeded quota: machines")}, reason: "QuotaExceeded", message: "exceeded quota: machines"},
		"at its maximum":               {pool: scaling(demand.ReasonAtMaximum), reason: "AtMaximum", message: "scaling.maxReplicas"},
		"waits for finishing machines": {pool: scaling(demand.ReasonWaitingForDeletion), reason: "AtMaximum", message: "scaling.maxReplicas"},
		"backs off":                    {pool: scaling(demand.ReasonBackingOff), reason: "BackingOff", message: "failed in a row"},
		"one of many has ended":        {pool: scaling(demand.ReasonScalingUp), queued: 2, busy: 9, reason: "AtMaximum", message: "scaling.maxReplicas allows (10)"},
		"one of many has failed":       {pool: scaling(demand.ReasonBackingOff), queued: 20, busy: 9, reason: "AtMaximum", message: "scaling.maxReplicas"},
		"the last machine is starting": {pool: scaling(demand.ReasonScalingUp), queued: 1, busy: 9, reason: demand.ReasonWaitingForMachine, message: "provides a machine"},
		"no capacity on the nodes": {
			pool: scaling(demand.ReasonSteady), claims: []func(*v1alpha1.MachineClaimStatus){claimIs("NoCapacity", "no node has room")}, queued: 1,
			reason: "NoCapacity", message: "no node has room",
		},
		"a lock": {
			pool: scaling(demand.ReasonSteady), claims: []func(*v1alpha1.MachineClaimStatus){claimIs("Locked", "can't lock file")}, queued: 1,
			reason: "Locked", message: "can't lock file",
		},
		"one of two machines is created": {
			pool:   scaling(demand.ReasonSteady),
			claims: []func(*v1alpha1.MachineClaimStatus){claimIs("NoCapacity", "no node has room"), claimIs("Creating", "cloning")}, queued: 2,
			reason: "NoCapacity", message: "no node has room",
		},
		"two of three machines are created": {
			pool: scaling(demand.ReasonSteady),
			claims: []func(*v1alpha1.MachineClaimStatus){
				claimIs("Locked", "x"), claimIs("Creating", "cloning"), claimIs("Creating", "cloning"),
			}, queued: 3,
			reason: demand.ReasonWaitingForMachine, message: "provides a machine",
		},
		"each job has a machine": {
			pool: scaling(demand.ReasonSteady), claims: []func(*v1alpha1.MachineClaimStatus){claimIs("Locked", "x"), claimIs("Creating", "cloning")}, queued: 1,
			reason: demand.ReasonWaitingForMachine, message: "provides a machine",
		},
		"a machine boots": {
			pool: scaling(demand.ReasonSteady), claims: []func(*v1alpha1.MachineClaimStatus){claimIs("WaitingForRunner", "x")}, queued: 1,
			reason: demand.ReasonWaitingForMachine, message: "provides a machine",
		},
		"a machine has ended": {
			pool: scaling(demand.ReasonSteady), claims: []func(*v1alpha1.MachineClaimStatus){func(s *v1alpha1.MachineClaimStatus) {
				s.Conditions, s.Times.Ended = []metav1.Condition{newReadyCondition(metav1.ConditionFalse, "VMStopped", "x")}, newMicroTimeAt(1)
			}}, queued: 1,
			reason: demand.ReasonWaitingForMachine, message: "provides a machine",
		},
		"a machine failed with a terminal error": {
			pool: scaling(demand.ReasonSteady), claims: []func(*v1alpha1.MachineClaimStatus){func(s *v1alpha1.MachineClaimStatus) {
				s.Phase, s.Times.Ended = v1alpha1.MachineClaimFailed, newMicroTimeAt(1)
				s.Conditions = []metav1.Condition{newReadyCondition(metav1.ConditionFalse, "TemplateNotFound", "there is no template 9000")}
			}}, queued: 1,
			reason: "TemplateNotFound", message: "there is no template 9000",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
			pool := createPool(t, namespace, "linux", repository, "s", "linux")

			pool.Spec.Paused, pool.Spec.Scaling.MaxReplicas = tc.paused, 10
			if err := env.Client.Update(t.Context(), pool); err != nil {
				t.Fatal(err)
			}

			pool.Status.Conditions, pool.Status.QueuedJobs, pool.Status.BusyReplicas = tc.pool, tc.queued, tc.busy
			if err := env.Client.Status().Update(t.Context(), pool); err != nil {
				t.Fatal(err)
			}

			for i, edit := range tc.claims {
				createClaim(t, namespace, "linux-"+string(rune('a'+i)), edit)
			}

			key := createJob(t, namespace, newJob(v1alpha1.JobQueued, func(j *workload.Job) { j.Repository = repository }))
			reconcileJob(t, newReconciler(t, clocktesting.NewFakePassiveClock(time.Now()), nil), key)

			got := getJob(t, key)
			coming := tc.reason == demand.ReasonWaitingForMachine
			status := metav1.ConditionFalse

			if coming {
				status = metav1.ConditionTrue
			}

			kube.CheckCondition(t, got.Status.Conditions, v1alpha1.ConditionReady, status, tc.reason, tc.message)
			kube.CheckCondition(t, got.Status.Conditions, demand.ConditionServed, metav1.ConditionFalse, tc.reason, tc.message)

			hasCause := strings.Contains(strings.Join(formatMoments(got), "\n"), "Waiting "+tc.reason+": ")
			if hasCause == coming {
				t.Errorf("timeline:\n%s", strings.Join(formatMoments(got), "\n"))
			}
		})
	}
}

// The machine may be deleted before the platform reports its job, and the log may arrive earlier still.
func TestLateCompletionFindsMachine(t *testing.T) {
	t.Parallel()

	namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
	createPool(t, namespace, "linux", repository, "s", "linux")

	_, stop := startJobController(t, namespace)
	defer stop()

	key := createJob(t, namespace, newJob(v1alpha1.JobQueued, func(j *workload.Job) { j.Repository = repository }))
	machine := createClaim(t, namespace, "linux-a", func(s *v1alpha1.MachineClaimStatus) {
		s.BootstrapInfo.RunnerName, s.Times.Started, s.Times.Ready = "runner-a", newMicroTimeAt(3), newMicroTimeAt(4)
		s.EndReason = "JobDone"
	})

	if err := (&report.Logs{Client: newIndexedClient(t)}).Keep(t.Context(), machine, "what it did"); err != nil {
		t.Fatal(err)
	}

	// The controller has observed the claim when it has observed a later claim.
	marker := createClaim(t, namespace, "marker", func(s *v1alpha1.MachineClaimStatus) {
		s.BootstrapInfo.BoundJob, s.Times.Cloned = key.Name, newMicroTimeAt(1)
	})
	waitUntil(t, func() bool { return slices.Contains(formatMoments(getJob(t, key)), "Cloned MachineClaim marker:") })

	for _, claim := range []*v1alpha1.MachineClaim{machine, marker} {
		if err := env.Client.Delete(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
	}

	waitUntil(t, func() bool { return strings.Contains(strings.Join(formatMoments(getJob(t, key)), "\n"), "MachineLost") })

	over := getJob(t, key)
	over.Spec.State, over.Spec.RunnerName, over.Spec.StartedAt, over.Spec.CompletedAt = v1alpha1.JobCompleted, "runner-a", newTimeAt(5), newTimeAt(9)

	if err := env.Client.Update(t.Context(), over); err != nil {
		t.Fatal(err)
	}

	waitUntil(t, func() bool { return getJob(t, key).Status.Logs != "" })

	got := getJob(t, key)
	timeline := strings.Join(formatMoments(got), "\n")

	for _, want := range []string{
		"Booted MachineClaim linux-a:", "Registered MachineClaim linux-a: runner runner-a", "Destroyed MachineClaim linux-a: gone: JobDone",
	} {
		if !strings.Contains(timeline, want) {
			t.Errorf("the timeline lacks %q:\n%s", want, timeline)
		}
	}

	if strings.Contains(timeline, "Cloned") || got.Status.Claim != "linux-a" {
		t.Errorf("claim %q, and the timeline of another machine:\n%s", got.Status.Claim, timeline)
	}

	var log v1alpha1.RunnerLog
	if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: got.Status.Logs}, &log); err != nil ||
		log.Spec.Text != "what it did" {
		t.Errorf("log = %+v (%v)", log, err)
	}
}

// A new process knows only the recorded state. The times of the machine stay, and its end is recorded
// although no process observed it.
func TestUnobservedEndIsRecorded(t *testing.T) {
	t.Parallel()

	namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
	createPool(t, namespace, "linux", repository, "s", "linux")

	machine := createClaim(t, namespace, "linux-a", func(s *v1alpha1.MachineClaimStatus) {
		s.BootstrapInfo.RunnerName, s.Times.Cloned, s.Times.Started, s.Times.Ready = "runner-a", newMicroTimeAt(2), newMicroTimeAt(3), newMicroTimeAt(4)
	})
	key := createJob(t, namespace, newJob(v1alpha1.JobRunning, func(j *workload.Job) {
		j.Repository, j.RunnerName, j.StartedAt = repository, "runner-a", newTimeAt(5)
	}))
	now := time.Now()
	clk := clocktesting.NewFakePassiveClock(now)
	first := newReconciler(t, clk, nil)

	reconcileTwice(t, clk, first, key)

	if err := env.Client.Delete(t.Context(), machine); err != nil {
		t.Fatal(err)
	}

	clk = clocktesting.NewFakePassiveClock(now.Add(time.Minute))
	reconcileTwice(t, clk, newReconciler(t, clk, nil), key)

	got := getJob(t, key).Status.Timeline
	last := got[len(got)-1]

	if last.Moment != v1alpha1.MomentDestroyed || !last.Time.Time.Equal(now.Add(time.Minute).Truncate(time.Microsecond)) ||
		last.Message != "MachineClaim linux-a: gone: the machine was already gone" {
		t.Errorf("last moment = %+v", last)
	}

	for _, moment := range []v1alpha1.JobMoment{v1alpha1.MomentCloned, v1alpha1.MomentBooted, v1alpha1.MomentRegistered, v1alpha1.MomentStarted} {
		if !slices.ContainsFunc(got, func(e v1alpha1.JobEvent) bool { return e.Moment == moment }) {
			t.Errorf("%s is lost", moment)
		}
	}
}
