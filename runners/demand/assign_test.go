// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

// newQueuedJobs returns queued jobs, one for each second.
func newQueuedJobs(count int, change func(i int, job *v1alpha1.RunnerJobSpec)) []v1alpha1.RunnerJob {
	out := make([]v1alpha1.RunnerJob, count)

	for i := range out {
		timestamp := metav1.NewTime(time.Date(2026, 5, 1, 12, 0, i, 0, time.UTC))
		out[i] = v1alpha1.RunnerJob{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("job-%02d", i)},
			Spec: v1alpha1.RunnerJobSpec{
				Platform: v1alpha1.WorkloadGitHubActions, ID: strconv.Itoa(i), Repository: "acme/app",
				Labels: []string{"linux"}, State: v1alpha1.JobQueued, QueuedAt: &timestamp,
			},
		}
		if change != nil {
			change(i, &out[i].Spec)
		}
	}

	return out
}

func assignJobs(jobs []v1alpha1.RunnerJob, pools ...demand.Pool) []string {
	var out []string

	demand.Assign(jobs, pools, func(job *v1alpha1.RunnerJob, pool demand.Pool) {
		out = append(out, job.Name+" "+pool.Name)
	})

	return out
}

func TestAssign(t *testing.T) {
	t.Parallel()

	with := func(name string, priority int32, limit int) demand.Pool {
		out := newPool(name, newRepositoryConfig("acme/app", "linux"))
		out.Priority, out.Max = priority, limit

		return out
	}

	cases := map[string]struct {
		jobs  []v1alpha1.RunnerJob
		pools []demand.Pool
		want  []string
	}{
		"the highest priority comes first": {
			newQueuedJobs(2, nil), []demand.Pool{with("a", 0, 9), with("b", 5, 9)}, []string{"job-00 b", "job-01 b"},
		},
		"pools of equal priority are ordered by name": {newQueuedJobs(1, nil), []demand.Pool{with("b", 1, 9), with("a", 1, 9)}, []string{"job-00 a"}},
		"a full pool's jobs go to the next pool": {
			newQueuedJobs(3, nil), []demand.Pool{with("a", 0, 9), with("b", 5, 2)}, []string{"job-00 b", "job-01 b", "job-02 a"},
		},
		"jobs wait for the first pool if all are full": {
			newQueuedJobs(3, nil), []demand.Pool{with("a", 0, 1), with("b", 5, 1)}, []string{"job-00 b", "job-01 a", "job-02 b"},
		},
		"running jobs use capacity first": {
			newQueuedJobs(2, func(i int, job *v1alpha1.RunnerJobSpec) {
				if i == 1 {
					job.State = v1alpha1.JobRunning
				}
			}), []demand.Pool{with("a", 0, 9), with("b", 5, 1)}, []string{"job-01 b", "job-00 a"},
		},
		"the platform's priority takes precedence over age": {
			newQueuedJobs(2, func(i int, job *v1alpha1.RunnerJobSpec) { job.Priority = int32(i) }),
			[]demand.Pool{with("a", 0, 9)}, []string{"job-01 a", "job-00 a"},
		},
		"jobs with unknown labels wait": {
			newQueuedJobs(1, func(_ int, job *v1alpha1.RunnerJobSpec) { job.Labels, job.LabelsUnknown = nil, true }),
			[]demand.Pool{with("a", 0, 9)}, nil,
		},
		"jobs of a scale set belong to its pool": {
			newQueuedJobs(1, func(_ int, job *v1alpha1.RunnerJobSpec) { job.Queue = "set" }), []demand.Pool{with("a", 0, 9)}, nil,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if diff := cmp.Diff(tc.want, assignJobs(tc.jobs, tc.pools...)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// However many jobs and pools exist, each job that a pool accepts is assigned once. No pool gets more jobs
// than it has capacity for while another pool of these jobs has capacity.
func TestAssignFillsEveryPool(t *testing.T) {
	t.Parallel()

	property.Check(t, "all jobs are given, and no room is left unused", property.Options{Runs: 300}, prop.ForAll(func(count, a, b int, first int32) string {
		one, two := newPool("one", newRepositoryConfig("acme/app", "linux")), newPool("two", newRepositoryConfig("acme/app", "linux"))
		one.Max, two.Max, one.Priority = a, b, first

		given := map[string]int{}

		demand.Assign(newQueuedJobs(count, nil), []demand.Pool{one, two}, func(_ *v1alpha1.RunnerJob, target demand.Pool) { given[target.Name]++ })

		switch {
		case given["one"]+given["two"] != count:
			return fmt.Sprintf("%d jobs, given %v", count, given)
		case given["one"] > a && given["two"] < b, given["two"] > b && given["one"] < a:
			return fmt.Sprintf("room for %d and %d, given %v", a, b, given)
		default:
			return ""
		}
	}, gen.IntRange(0, 40), gen.IntRange(0, 30), gen.IntRange(0, 31), gen.Int32Range(-1, 1)))
}
