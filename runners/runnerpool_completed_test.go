// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"context"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// countingClient counts the jobs that it lists.
type countingClient struct {
	client.Client

	jobs []string
}

func (c *countingClient) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	err := c.Client.List(ctx, list, opts...)

	if jobs, ok := list.(*v1alpha1.RunnerJobList); ok {
		for i := range jobs.Items {
			c.jobs = append(c.jobs, jobs.Items[i].Name)
		}
	}

	return err
}

// A pool reads the jobs that are not completed, and of the completed jobs, which are kept for a day, only those of its own
// machines: such a machine takes no other job.
func TestPoolReadsFewCompletedJobs(t *testing.T) {
	t.Parallel()

	w := newPoolFixture(t, nil)
	w.queueJobs(1)
	w.reconcileAfter(0)

	machine := w.requireClaims(1, 0)[0]
	w.setClaimStatus(&machine, func(status *v1alpha1.MachineClaimStatus, now *metav1.MicroTime) {
		setBusy(status, now)
		status.BootstrapInfo = &v1alpha1.BootstrapInfo{RunnerName: "own"}
	})
	w.completeJobs(map[string]string{"job-1": "own"})

	w.queueJobs(3)
	w.completeJobs(map[string]string{"job-2": "gone", "job-3": ""})

	counting := &countingClient{Client: w.reconciler.Client}
	w.reconciler.Client = counting
	w.reconcileAfter(0)

	slices.Sort(counting.jobs)

	if want := []string{"job-1", "job-4"}; !slices.Equal(counting.jobs, want) {
		t.Errorf("the pool has read the jobs %q, want %q", counting.jobs, want)
	}

	w.requireClaims(2, 0) // the machine whose job is completed gets no other
}

// completeJobs completes jobs, which have run on the named runners.
func (w *poolFixture) completeJobs(runners map[string]string) {
	w.Helper()
	w.setJobs(v1alpha1.JobCompleted, runners)
}

// setJobs sets the state of jobs, and their runners.
func (w *poolFixture) setJobs(state v1alpha1.JobState, runners map[string]string) {
	w.Helper()

	for name, runner := range runners {
		job := getObject(w, w.namespace, name, &v1alpha1.RunnerJob{})
		job.Spec.State, job.Spec.RunnerName = state, runner

		if err := env.Client.Update(w.Context(), job); err != nil {
			w.Fatal(err)
		}
	}
}

// A machine that is being deleted and has reported its job holds no queued job back, although the pool sees its report for
// the first time, for example after a restart.
func TestDeletedMachineHoldsNoJobBack(t *testing.T) {
	t.Parallel()

	for _, state := range []v1alpha1.JobState{v1alpha1.JobRunning, v1alpha1.JobCompleted} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()

			w := newPoolFixture(t, nil)
			w.queueJobs(1)
			w.reconcileAfter(0)

			machine := w.requireClaims(1, 0)[0]
			w.setClaimStatus(&machine, func(status *v1alpha1.MachineClaimStatus, now *metav1.MicroTime) {
				setBusy(status, now)
				status.BootstrapInfo = &v1alpha1.BootstrapInfo{RunnerName: "own", GuestPhase: string(guest.PhaseRunning)}
			})
			w.setJobs(state, map[string]string{"job-1": "own"})
			deleteObject(t, &machine)
			w.queueJobs(1)
			w.reconcileAfter(0)
			w.requireClaims(1, 0)
		})
	}
}
