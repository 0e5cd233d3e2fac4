// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/gitea"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

// TestJobIsRunAgain checks that a job that is run again under its id starts over, on platforms that keep the id, and
// that a late event does not start it.
func TestJobIsRunAgain(t *testing.T) {
	t.Parallel()

	platforms := demand.Platforms{v1alpha1.WorkloadGiteaActions: gitea.Gitea(), v1alpha1.WorkloadGitHubActions: github.Platform{}}
	ledger := &demand.Ledger{Client: env.Client, Live: env.Client, Platforms: platforms}

	for platform, startsOver := range map[string]bool{v1alpha1.WorkloadGiteaActions: true, v1alpha1.WorkloadGitHubActions: false} {
		namespace, now := env.Namespace(t), time.Now()
		record := func(state v1alpha1.JobState, after time.Duration) *v1alpha1.RunnerJob {
			t.Helper()

			job := newJob(state, func(j *workload.Job) {
				j.Platform = platform
				if state == v1alpha1.JobCompleted {
					j.RunnerName, j.Conclusion = "r1", "failure"
				}
			})
			if _, err := ledger.Record(t.Context(), namespace, job, now.Add(after)); err != nil {
				t.Fatal(err)
			}

			return getJob(t, client.ObjectKey{Namespace: namespace, Name: platforms.JobName(job)})
		}

		record(v1alpha1.JobQueued, 0)
		first := record(v1alpha1.JobCompleted, time.Minute)

		if late := record(v1alpha1.JobQueued, time.Minute+5*time.Second); late.UID != first.UID || late.Spec.State != v1alpha1.JobCompleted {
			t.Errorf("%s: a late event changed the job to %+v", platform, late.Spec)
		}

		again := record(v1alpha1.JobQueued, 2*time.Minute)
		if isNew := again.UID != first.UID && again.Spec.State == v1alpha1.JobQueued && again.Spec.RunnerName == ""; isNew != startsOver {
			t.Errorf("%s: started over %t, want %t: %+v", platform, isNew, startsOver, again.Spec)
		}

		if same := record(v1alpha1.JobQueued, 3*time.Minute); same.UID != again.UID {
			t.Errorf("%s: a second event starts the job over again", platform)
		}
	}
}
