// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// A report that must not be lost gets its response after it is written to the status.
func TestLastReportIsRecordedBeforeResponse(t *testing.T) { //nolint:paralleltest // it has its own clock
	synctest.Test(t, func(t *testing.T) {
		o := newReportFixture(t, v1alpha1.BootstrapInfo{RunnerName: "runner-a", BoundJob: "gh-7"})
		o.openInbox()
		o.drain()

		answered := make(chan int, 1)

		go func() { answered <- o.sendReport(guest.PhaseFinished) }()

		for range 2 { // the controller could not write the RunnerJob at first
			<-o.enqueued
			synctest.Wait()

			select {
			case code := <-answered:
				t.Fatalf("status %d before the report was recorded", code)
			default:
			}

			o.reconcileOnce(step.Wait(time.Minute, "PoweringOff", "x").DeferWrite())
		}

		if code := <-answered; code != http.StatusNoContent || o.writes != 1 {
			t.Errorf("status %d after %d writes", code, o.writes)
		}

		if got := o.getClaim().Status.BootstrapInfo; got.GuestReason != "r" || got.GuestPhase != string(guest.PhaseFinished) {
			t.Errorf("recorded: %+v", got)
		}
	})
}

// The report of a machine that is bound to a job gets its response when the RunnerJob has the state of the job, and needs no
// write of its own. The RunnerJob of another runner tells nothing.
func TestReportOfBoundMachineWaitsForItsJob(t *testing.T) { //nolint:paralleltest // it has its own clock
	const ownRunner = "runner-a"

	for name, tc := range map[string]struct {
		phase    guest.Phase
		runner   string
		state    v1alpha1.JobState
		isUrgent bool
	}{
		"the job runs":                      {guest.PhaseRunning, ownRunner, v1alpha1.JobRunning, false},
		"the job runs and has ended":        {guest.PhaseRunning, ownRunner, v1alpha1.JobCompleted, false},
		"the job has ended":                 {guest.PhaseFinished, ownRunner, v1alpha1.JobCompleted, false},
		"the end of the job is not written": {guest.PhaseFinished, ownRunner, v1alpha1.JobRunning, true},
		"the job is still queued":           {guest.PhaseRunning, "", v1alpha1.JobQueued, true},
		"another runner has the job":        {guest.PhaseRunning, "runner-b", v1alpha1.JobRunning, true},
		"the job was canceled":              {guest.PhaseFinished, "", v1alpha1.JobCompleted, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newReportFixture(t, v1alpha1.BootstrapInfo{RunnerName: ownRunner, BoundJob: "gh-7"})
				o.handler.Clock = clock.RealClock{}
				o.openInbox()
				o.drain()

				answered := make(chan int, 1)

				go func() { answered <- o.sendReport(tc.phase) }()

				<-o.enqueued // the controller reconciles, and writes the RunnerJob

				job := &v1alpha1.RunnerJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "gh-7"}}
				job.Spec.RunnerName, job.Spec.State = tc.runner, tc.state
				must.Do(t, o.client.Create(t.Context(), job))
				o.reconcileOnce(step.Wait(time.Minute, "Idle", "x").DeferWrite())

				if tc.isUrgent {
					<-o.enqueued
					o.reconcileOnce(step.Wait(time.Minute, "Idle", "x").DeferWrite())
				}

				if code := <-answered; code != http.StatusNoContent || (o.writes > 0) != tc.isUrgent {
					t.Errorf("status %d after %d writes; want a write: %t", code, o.writes, tc.isUrgent)
				}
			})
		})
	}
}
