// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/gitea"
	"github.com/hyperfleet/hyperfleet/workload/github"
	"github.com/hyperfleet/hyperfleet/workload/gitlab"
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

// TestPlatformGivesIDsAgain checks that a job with the ID of an earlier job starts over, because the platform was restored
// from a backup, and that a late event of the earlier job does not.
func TestPlatformGivesIDsAgain(t *testing.T) {
	t.Parallel()

	platforms := demand.Platforms{v1alpha1.WorkloadGitHubActions: github.Platform{}, v1alpha1.WorkloadGitLabCI: gitlab.Platform{}}
	ledger := &demand.Ledger{Client: env.Client, Live: env.Client, Platforms: platforms}

	for platform := range platforms {
		for _, state := range []v1alpha1.JobState{v1alpha1.JobRunning, v1alpha1.JobCompleted} {
			namespace, now := env.Namespace(t), time.Now()
			at := func(after time.Duration) *metav1.Time { return new(metav1.NewTime(now.Add(after))) }
			record := func(state v1alpha1.JobState, queuedAt time.Duration) *v1alpha1.RunnerJob {
				t.Helper()

				job := newJob(state, func(j *workload.Job) {
					j.Platform, j.QueuedAt = platform, at(queuedAt)

					if state != v1alpha1.JobQueued {
						j.RunnerName, j.StartedAt = "r1", at(time.Minute)
					}

					if state == v1alpha1.JobCompleted {
						j.CompletedAt, j.Conclusion = at(2*time.Minute), "success"
					}
				})
				if _, err := ledger.Record(t.Context(), namespace, job, now.Add(time.Hour)); err != nil {
					t.Fatal(err)
				}

				return getJob(t, client.ObjectKey{Namespace: namespace, Name: platforms.JobName(job)})
			}

			first := record(state, 0)

			if late := record(v1alpha1.JobQueued, 0); late.UID != first.UID || late.Spec.State != state {
				t.Errorf("%s, %s: a late event changed the job to %+v", platform, state, late.Spec)
			}

			another := record(v1alpha1.JobQueued, 30*time.Minute)
			if another.UID == first.UID || another.Spec.State != v1alpha1.JobQueued || another.Spec.RunnerName != "" {
				t.Errorf("%s, %s: another job with the ID is %+v", platform, state, another.Spec)
			}

			if same := record(v1alpha1.JobQueued, 30*time.Minute); same.UID != another.UID {
				t.Errorf("%s, %s: a second event starts the job over again", platform, state)
			}
		}
	}
}
