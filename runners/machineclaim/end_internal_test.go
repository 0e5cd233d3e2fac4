// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// endFixture is a claim whose machine has run a job, as the API server has it.
type endFixture struct {
	claim *v1alpha1.MachineClaim
	job   *v1alpha1.RunnerJob
	// ends are the last states that the claim controller gave to the job controller.
	ends []*v1alpha1.MachineClaim
}

func (w *endFixture) RecordEnd(claim *v1alpha1.MachineClaim) {
	w.ends = append(w.ends, claim.DeepCopy())
}

func newEndFixture() *endFixture {
	ready := metav1.NewMicroTime(time.Unix(1e9, 0))
	w := &endFixture{claim: &v1alpha1.MachineClaim{}, job: &v1alpha1.RunnerJob{}}
	w.claim.Namespace, w.claim.Name, w.claim.UID = "ci", "linux-a", "1"
	w.claim.Finalizers = []string{v1alpha1.FinalizerVMCleanup}
	w.claim.Spec.RunnerPoolRef = &v1alpha1.LocalObjectReference{Name: "linux"}
	w.claim.Status.VMRef = &v1alpha1.VMReference{VMID: "100"}
	w.claim.Status.BootstrapInfo = &v1alpha1.BootstrapInfo{RunnerName: "runner-a"}
	w.claim.Status.Times = &v1alpha1.MachineTimes{Ready: &ready}
	w.job.Namespace, w.job.Name = "ci", "gh-1"
	w.job.Spec.RunnerName, w.job.Spec.State = "runner-a", v1alpha1.JobCompleted

	return w
}

// reportEnd changes the fixture to that of a platform that has not reported the end of the job: only the machine has.
func (w *endFixture) reportEnd(reason string) {
	w.job.Spec.State = v1alpha1.JobRunning
	w.claim.Status.BootstrapInfo.GuestPhase, w.claim.Status.BootstrapInfo.GuestReason = string(guest.PhaseFinished), reason
}

// newScope returns the scope of a new process.
func (w *endFixture) newScope(t *testing.T) (*scope, *step.Reconciler) {
	t.Helper()

	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(w.claim, w.job).WithStatusSubresource(w.claim).
		WithIndex(w.job, demand.IndexRunnerName, func(obj client.Object) []string {
			job, _ := obj.(*v1alpha1.RunnerJob)

			return []string{job.Spec.RunnerName}
		}).Build()
	clock := clocktesting.NewFakePassiveClock(time.Unix(1e9+60, 0))

	claim := &v1alpha1.MachineClaim{}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(w.claim), claim); err != nil {
		t.Fatal(err)
	}

	return &scope{Reconciler: &Reconciler{Client: c, Clock: clock, Ends: w}, claim: claim},
		&step.Reconciler{Client: c, Controller: "test", Clock: clock}
}

// The end of a machine stays unwritten only if the next process finds everything that it needs.
func TestEndIsWrittenUnlessRecorded(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		change func(*endFixture)
		want   bool
	}{
		"job is completed":              {func(*endFixture) {}, true},
		"job runs":                      {func(w *endFixture) { w.job.Spec.State = v1alpha1.JobRunning }, false},
		"job of another runner":         {func(w *endFixture) { w.job.Spec.RunnerName = "runner-b" }, false},
		"runner online is not recorded": {func(w *endFixture) { w.claim.Status.Times.Ready = nil }, true},
		"no runner is recorded":         {func(w *endFixture) { w.claim.Status.BootstrapInfo = nil }, false},
		"bound to a job":                {func(w *endFixture) { w.claim.Status.BootstrapInfo.BoundJob = "gh-1" }, true},
		"without a pool":                {func(w *endFixture) { w.claim.Spec.RunnerPoolRef = nil }, false},
		"machine has reported the end":  {func(w *endFixture) { w.reportEnd(guest.ReasonJobDone) }, true},
		"machine had no job":            {func(w *endFixture) { w.reportEnd(guest.ReasonIdleTimeout) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newEndFixture()
			tc.change(w)

			s, runner := w.newScope(t)

			var got bool

			_, err := step.ReconcileSteps(t.Context(), runner, s.claim, []step.Step[*scope]{
				{Name: "End", Run: func(ctx context.Context, s *scope) step.Result {
					// These changes are of this run, and the API server does not have them.
					s.claim.Status.BootstrapInfo = &v1alpha1.BootstrapInfo{RunnerName: "runner-a", Job: "gh-1"}
					s.times().Ready = s.now()
					s.setEnded(guest.ReasonJobDone)

					got = s.isEndRecorded(ctx)

					return step.Wait(0, "Test", "").DeferWriteAtEnd()
				}},
			}, s)

			if err != nil || got != tc.want {
				t.Errorf("the end is recorded: %t, want %t (%v)", got, tc.want, err)
			}
		})
	}
}

// The claim of a stopped machine waits for the end of its job, so that the end of the machine needs no write of its own.
func TestStoppedMachineWaitsForEndOfJob(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		state                v1alpha1.JobState
		stoppedFor           time.Duration
		isWritten, isDeleted bool
	}{
		"the job has ended":            {v1alpha1.JobCompleted, 0, false, true},
		"the job has not ended":        {v1alpha1.JobRunning, time.Second, false, false},
		"the platform is silent since": {v1alpha1.JobRunning, 3 * time.Second, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newEndFixture()
			w.job.Spec.State = tc.state

			s, runner := w.newScope(t)
			result, err := step.ReconcileSteps(t.Context(), runner, s.claim, []step.Step[*scope]{
				{Name: "Stopped", Run: func(_ context.Context, s *scope) step.Result {
					stopped := metav1.NewMicroTime(s.Clock.Now().Add(-tc.stoppedFor))
					s.times().Stopped, s.claim.Status.BootstrapInfo.Job = &stopped, w.job.Name
					s.setEnded(guest.ReasonJobDone)

					return step.Done()
				}},
				{Name: "Retired", Run: retire},
			}, s)

			got := &v1alpha1.MachineClaim{}
			must.Do(t, s.Client.Get(t.Context(), client.ObjectKeyFromObject(w.claim), got))

			isWritten, isDeleted := got.Status.EndReason != "", !got.DeletionTimestamp.IsZero()
			if err != nil || isWritten != tc.isWritten || isDeleted != tc.isDeleted || !isDeleted && result.RequeueAfter > time.Second {
				t.Errorf("written: %t, deleted: %t, requeued after %s (%v)", isWritten, isDeleted, result.RequeueAfter, err)
			}
		})
	}
}

// A process that did not see the end of a machine finds it in the job or in the report of the machine, and gives it to the
// job controller. A machine whose job is not done has no end reason.
func TestEndIsRestored(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		change func(*endFixture)
		want   string
	}{
		"job is completed":             {func(*endFixture) {}, guest.ReasonJobDone},
		"job runs":                     {func(w *endFixture) { w.job.Spec.State = v1alpha1.JobRunning }, ""},
		"machine has reported the end": {func(w *endFixture) { w.reportEnd(guest.ReasonJobDone) }, guest.ReasonJobDone},
	} {
		w := newEndFixture()
		w.claim.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9+30, 0)}
		tc.change(w)

		s, runner := w.newScope(t)
		steps := []step.Step[*scope]{{Name: "DestroyedEmitted", Run: emitDestroyed}}

		_, err := step.Finalize(t.Context(), runner, s.claim, v1alpha1.FinalizerVMCleanup, steps, s)
		if err != nil || len(w.ends) != 1 || w.ends[0].Status.EndReason != tc.want {
			t.Errorf("%s: ends %v, want one with the reason %q (%v)", name, w.ends, tc.want, err)
		}
	}
}

// runningProvider is a hypervisor whose machines run, and that reports no changes.
type runningProvider struct{ hypervisor.Provider }

func (runningProvider) Get(context.Context, hypervisor.MachineRef) (hypervisor.Machine, error) {
	return hypervisor.Machine{State: hypervisor.StateRunning}, nil
}

// A machine that runs is read again within 30 seconds, whether its hypervisor reports a change or not.
func TestRunningMachineIsReadAgain(t *testing.T) {
	t.Parallel()

	for name, job := range map[string]string{"idle": "", "with a job": "gh-1"} {
		w := newEndFixture()
		w.job.Spec.RunnerName = "runner-b"
		w.claim.Status.BootstrapInfo.Job, w.claim.Status.NetworkInfo = job, &v1alpha1.NetworkInfo{}

		s, _ := w.newScope(t)
		s.provider = runningProvider{}

		if next := follow(t.Context(), s).RequeueAfter(); next <= 0 || next > 30*time.Second {
			t.Errorf("%s: the machine is read again after %s", name, next)
		}
	}
}
