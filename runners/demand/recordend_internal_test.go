// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// The job of a deleted claim gets the last state that the claim's controller had, which the API server never had. It
// gets nothing from an earlier claim of the same name.
func TestLastStateOfClaimIsKept(t *testing.T) {
	t.Parallel()

	now := time.Unix(1e9, 0)
	cached := &v1alpha1.MachineClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "linux-a", UID: "1"}}
	cached.Status.BootstrapInfo = &v1alpha1.BootstrapInfo{RunnerName: "runner-a"}

	last := cached.DeepCopy()
	last.Status.EndReason = "JobDone"

	r := &JobReconciler{}
	r.RecordEnd(last)
	r.deletedMachines.add(cached, now)

	job := &v1alpha1.RunnerJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "gh-1"}}
	job.Spec.RunnerName = "runner-a"

	if got, ok := r.deletedMachines.find(job, now); !ok || got.EndReason != "JobDone" || !got.DeletedAt.Equal(now) {
		t.Errorf("machine %+v, %v", got, ok)
	}

	next := cached.DeepCopy()
	next.UID = "2"
	r.deletedMachines.add(next, now)

	if got, ok := r.deletedMachines.find(job, now); !ok || got.EndReason != "" || len(r.deletedMachines.ends) != 0 {
		t.Errorf("machine %+v, %v of the next claim; %d ends are kept", got, ok, len(r.deletedMachines.ends))
	}
}

// A job may be reconciled after the cache has lost its claim and before the deletion of the claim has been handled. The
// timeline must not say then that the end of the machine is unknown, because it never changes afterwards.
func TestEndOfMachineBeforeItsDeletionIsHandled(t *testing.T) {
	t.Parallel()

	now := time.Unix(1e9, 0)
	claim := &v1alpha1.MachineClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "linux-a", UID: "1"}}
	claim.Status.VMRef = &v1alpha1.VMReference{VMID: "101", Node: "pve1"}
	claim.Status.EndReason = "JobDone"

	job := &v1alpha1.RunnerJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "gh-1"}}
	job.Spec.State, job.Status.Claim = v1alpha1.JobCompleted, claim.Name

	r := &JobReconciler{
		Client: fake.NewClientBuilder().WithScheme(newScheme(t)).WithObjects(job).Build(), Clock: clocktesting.NewFakePassiveClock(now),
	}
	reconcileTimeline := func() string {
		s := &scope{JobReconciler: r, job: job}
		if result := recordTimeline(t.Context(), s); !result.IsDone() {
			t.Fatal(result)
		}

		var last v1alpha1.JobEvent
		for _, event := range job.Status.Timeline {
			if event.Moment == v1alpha1.MomentDestroyed {
				last = event
			}
		}

		return last.Message
	}

	// An earlier claim of the same name has another end.
	earlier := claim.DeepCopy()
	earlier.UID, earlier.Status.EndReason = "0", "BootstrapTimeout"
	r.deletedMachines.add(earlier, now)

	r.RecordEnd(claim)

	const want = "MachineClaim linux-a: VM 101 is gone: JobDone"

	if got := reconcileTimeline(); got != want {
		t.Errorf("before the deletion is handled, the timeline says %q, want %q", got, want)
	}

	r.deletedMachines.add(claim, now)

	if got := reconcileTimeline(); got != want || len(r.deletedMachines.ends) != 0 {
		t.Errorf("the timeline says %q, want %q; %d ends are kept", got, want, len(r.deletedMachines.ends))
	}
}

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()

	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	return scheme
}
