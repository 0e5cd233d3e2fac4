// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// newClaim returns a claim as the watch would report it.
func newClaim(uid, name string, edit func(*v1alpha1.MachineClaimStatus)) *v1alpha1.MachineClaim {
	c := &v1alpha1.MachineClaim{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid)}}
	if edit != nil {
		edit(&c.Status)
	}

	return c
}

func TestTrackerFollowsAClaim(t *testing.T) {
	t.Parallel()

	begin := time.Unix(1000, 0)
	clock := clocktesting.NewFakePassiveClock(begin)
	tr := newTracker(clock)
	at := func(seconds int) { clock.SetTime(begin.Add(time.Duration(seconds) * time.Second)) }

	tr.handleUpsert(&v1alpha1.RunnerJob{
		ObjectMeta: metav1.ObjectMeta{Name: "job-1"},
		Spec: v1alpha1.RunnerJobSpec{
			ID: "77", Name: "build", ReceivedAt: &metav1.MicroTime{Time: begin.Add(-time.Second)},
		},
	})
	tr.handleUpsert(newClaim("u1", "demo-a", nil))
	at(2)
	tr.handleUpsert(newClaim("u1", "demo-a", func(s *v1alpha1.MachineClaimStatus) {
		s.Phase = v1alpha1.MachineClaimBootstrapping
		s.VMRef = &v1alpha1.VMReference{VMID: "100000", Node: "pve1"}
		s.BootstrapInfo = &v1alpha1.BootstrapInfo{RunnerName: "r", GuestPhase: "Started"}
	}))
	at(5)

	want := []row{{
		claim: "demo-a", phase: "Bootstrapping (Started)", vm: "pve1/100000", runner: "r",
		age: 5 * time.Second, inPhase: 3 * time.Second,
	}}
	if diff := cmp.Diff(want, tr.rows(), cmp.AllowUnexported(row{})); diff != "" {
		t.Error(diff)
	}

	tr.handleUpsert(newClaim("u1", "demo-a", func(s *v1alpha1.MachineClaimStatus) {
		s.Phase = v1alpha1.MachineClaimReady
		s.BootstrapInfo = &v1alpha1.BootstrapInfo{RunnerName: "r", GuestPhase: "Running", Job: "job-1"}
		s.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Reason: "Busy", Message: "runs a job"}}
	}))

	if got := tr.rows()[0]; got.phase != "Ready" || got.job != "build #77" || got.vm != "pve1/100000" {
		t.Errorf("row %+v, want the job's title, and the VM although an event omits it", got)
	}

	if got, want := tr.currentClaims()[0].describe(), "demo-a Ready, vm pve1/100000, Busy: runs a job"; got != want {
		t.Errorf("described as %q, want %q", got, want)
	}

	at(9)
	tr.handleDelete(toolscache.DeletedFinalStateUnknown{Obj: newClaim("u1", "demo-a", nil)})

	if left := tr.currentClaims(); len(left) != 0 {
		t.Errorf("claims left: %+v", left)
	}

	all := tr.allClaims()
	if len(all) != 1 || !all[0].deletionSeen.Equal(begin.Add(9*time.Second)) {
		t.Errorf("the history of the deleted claim: %+v", all)
	}

	if got := tr.receiveTimes(); len(got) != 1 || !got[0].Equal(begin.Add(-time.Second)) {
		t.Errorf("jobs received at %v", got)
	}
}

// The claim of a short job is deleted without the times of its machine, which the timeline of its job has.
func TestTrackerFindsTimesInJobs(t *testing.T) {
	t.Parallel()

	at := func(seconds int64) *metav1.MicroTime { return &metav1.MicroTime{Time: time.Unix(seconds, 0)} }
	claim := newClaim("u1", "demo-a", func(s *v1alpha1.MachineClaimStatus) {
		s.Phase = v1alpha1.MachineClaimProvisioning
		s.BootstrapInfo = &v1alpha1.BootstrapInfo{RunnerName: "r"}
		s.Times = &v1alpha1.MachineTimes{CloneStarted: at(1)}
	})

	tr := newTracker(clocktesting.NewFakePassiveClock(time.Unix(0, 0)))
	tr.handleUpsert(claim)
	tr.handleUpsert(newClaim("u2", "demo-b", nil))
	tr.handleUpsert(&v1alpha1.RunnerJob{ObjectMeta: metav1.ObjectMeta{Name: "queued"}})
	tr.handleUpsert(&v1alpha1.RunnerJob{
		ObjectMeta: metav1.ObjectMeta{Name: "job-1"},
		Spec:       v1alpha1.RunnerJobSpec{RunnerName: "r"},
		Status: v1alpha1.RunnerJobStatus{Timeline: []v1alpha1.JobEvent{
			{Moment: v1alpha1.MomentBooted, Time: *at(2)}, {Moment: v1alpha1.MomentRegistered, Time: *at(3)},
		}},
	})

	all := tr.allClaims()
	want := v1alpha1.MachineTimes{CloneStarted: at(1), Started: at(2), Ready: at(3)}

	if diff := cmp.Diff(want, all[0].times); diff != "" || all[0].job != "job-1" || all[0].phase != string(v1alpha1.MachineClaimReady) {
		t.Errorf("job %q, phase %s, times %s", all[0].job, all[0].phase, diff)
	}

	if all[1].job != "" || all[1].phase != string(v1alpha1.MachineClaimPending) {
		t.Errorf("a claim without a runner has job %q and phase %s", all[1].job, all[1].phase)
	}
}

func TestTrackerKeepsNamesakesApart(t *testing.T) {
	t.Parallel()

	tr := newTracker(clocktesting.NewFakePassiveClock(time.Unix(0, 0)))
	tr.handleUpsert(newClaim("u1", "demo-a", nil))
	tr.handleDelete(newClaim("u1", "demo-a", nil))
	tr.handleUpsert(newClaim("u2", "demo-a", nil))

	if now, all := tr.currentClaims(), tr.allClaims(); len(now) != 1 || len(all) != 2 {
		t.Errorf("%d current claims and %d in all, want 1 and 2", len(now), len(all))
	}
}
