// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/buildkite"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

func newMinute(minute int) *metav1.Time {
	return &metav1.Time{Time: getStartTime().Add(time.Duration(minute) * time.Minute)}
}

func newJob(state v1alpha1.JobState, edits ...func(*workload.Job)) workload.Job {
	out := workload.Job{
		Platform: v1alpha1.WorkloadGitHubActions, ID: "7", Name: "build", Repository: "acme/app",
		Labels: []string{"self-hosted", "linux"}, State: state, QueuedAt: newMinute(0),
	}

	for _, edit := range edits {
		edit(&out)
	}

	return out
}

func withRunner(name string) func(*workload.Job) {
	return func(j *workload.Job) { j.RunnerName, j.StartedAt = name, newMinute(1) }
}

func withConclusion(conclusion string) func(*workload.Job) {
	return func(j *workload.Job) { j.Conclusion, j.CompletedAt = conclusion, newMinute(2) }
}

func TestMerge(t *testing.T) {
	t.Parallel()

	receivedAt := &metav1.MicroTime{Time: getStartTime()}
	received := func(j *workload.Job) { j.ReceivedAt = receivedAt }
	other := func(j *workload.Job) { j.ID = "8" }
	bare := func(j *workload.Job) { j.Labels, j.Name, j.QueuedAt = nil, "", nil }

	tests := map[string]struct {
		old, event, want workload.Job
		changed          bool
	}{
		"the first event is applied": {
			event: newJob(v1alpha1.JobQueued), want: newJob(v1alpha1.JobQueued), changed: true,
		},
		"approved": {
			old: newJob(v1alpha1.JobWaiting), event: newJob(v1alpha1.JobQueued), want: newJob(v1alpha1.JobQueued), changed: true,
		},
		"started, and the time of the first event stays": {
			old: newJob(v1alpha1.JobQueued, received), event: newJob(v1alpha1.JobRunning, withRunner("r1")),
			want: newJob(v1alpha1.JobRunning, withRunner("r1"), received), changed: true,
		},
		"fields that the later event lacks stay": {
			old: newJob(v1alpha1.JobRunning, withRunner("r1")), event: newJob(v1alpha1.JobCompleted, withConclusion("success"), bare),
			want: newJob(v1alpha1.JobCompleted, withRunner("r1"), withConclusion("success")), changed: true,
		},
		"a duplicate": {
			old: newJob(v1alpha1.JobQueued, received), event: newJob(v1alpha1.JobQueued), want: newJob(v1alpha1.JobQueued, received),
		},
		"queued after running is late": {
			old: newJob(v1alpha1.JobRunning, withRunner("r1")), event: newJob(v1alpha1.JobQueued), want: newJob(v1alpha1.JobRunning, withRunner("r1")),
		},
		"running after completed is late": {
			old: newJob(v1alpha1.JobCompleted, withConclusion("success")), event: newJob(v1alpha1.JobRunning, withRunner("r1")),
			want: newJob(v1alpha1.JobCompleted, withConclusion("success")),
		},
		"waiting after queued is late": {
			old: newJob(v1alpha1.JobQueued), event: newJob(v1alpha1.JobWaiting), want: newJob(v1alpha1.JobQueued),
		},
		"a completed job keeps its first conclusion": {
			old: newJob(v1alpha1.JobCompleted, withConclusion("success")), event: newJob(v1alpha1.JobCompleted, withConclusion("failure")),
			want: newJob(v1alpha1.JobCompleted, withConclusion("success")),
		},
		"the same state fills in what is missing": {
			old: newJob(v1alpha1.JobRunning), event: newJob(v1alpha1.JobRunning, withRunner("r1")),
			want: newJob(v1alpha1.JobRunning, withRunner("r1")), changed: true,
		},
		"another job's event": {
			old: newJob(v1alpha1.JobQueued), event: newJob(v1alpha1.JobCompleted, other), want: newJob(v1alpha1.JobQueued),
		},
		"an unknown state": {
			old: newJob(v1alpha1.JobQueued), event: newJob("Elsewhere"), want: newJob(v1alpha1.JobQueued),
		},
	}

	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			previous := *test.old.DeepCopy()
			got, changed := demand.Merge(test.old, test.event)

			if diff := cmp.Diff(test.want, got); diff != "" || changed != test.changed {
				t.Errorf("Merge changed %t, want %t (-want +got):\n%s", changed, test.changed, diff)
			}

			if diff := cmp.Diff(previous, test.old); diff != "" {
				t.Errorf("Merge changed its argument:\n%s", diff)
			}
		})
	}
}

// However events are duplicated, lost or reordered, the last received state counts.
func TestPropertyMergeConverges(t *testing.T) {
	t.Parallel()

	story := []workload.Job{
		newJob(v1alpha1.JobWaiting), newJob(v1alpha1.JobQueued), newJob(v1alpha1.JobRunning, withRunner("r1")),
		newJob(v1alpha1.JobCompleted, withRunner("r1"), withConclusion("success")),
	}
	checkProperty(t, "any delivery ends in the latest reported state", prop.ForAll(func(seed int64, length int) string {
		rng := rand.New(rand.NewPCG(uint64(seed), 0))
		latest := -1

		var ledger workload.Job

		for range length {
			i := rng.IntN(len(story))
			latest = max(latest, i)
			ledger, _ = demand.Merge(ledger, story[i])

			again, changed := demand.Merge(ledger, story[i])
			if changed || !cmp.Equal(ledger, again) {
				return "the same event twice is not the same as once"
			}

			if !cmp.Equal(ledger, story[latest]) {
				return "not the latest state: " + cmp.Diff(story[latest], ledger)
			}
		}

		return ""
	}, gen.Int64(), gen.IntRange(1, 12)))
}

func TestName(t *testing.T) {
	t.Parallel()

	hosted := func(id, url string) workload.Job {
		return workload.Job{Platform: v1alpha1.WorkloadGitHubActions, ID: id, URL: url}
	}
	known := demand.Platforms{v1alpha1.WorkloadGitHubActions: github.Platform{}, v1alpha1.WorkloadBuildkite: buildkite.Platform{}}
	names := map[string]workload.Job{}

	for want, in := range map[string]workload.Job{
		"gh-123":  hosted("123", "https://github.com/a/b/actions/runs/1/job/123"),
		"gh-124":  hosted("124", ""),
		"gh-125-": hosted("125", "https://ghes.example.com/a/b/actions/runs/1/job/125"),
		"bk-0190": {Platform: v1alpha1.WorkloadBuildkite, ID: "0190-af"},
		"job-a-":  {Platform: v1alpha1.WorkloadGeneric, ID: "A"},
		"job-":    {Platform: v1alpha1.WorkloadGeneric, ID: "//"},
		"job-aaa": {Platform: v1alpha1.WorkloadGeneric, ID: strings.Repeat("a", 400), URL: "https://ci.example.com"},
	} {
		got := known.JobName(in)
		if !strings.HasPrefix(got, want) || got != known.JobName(in) {
			t.Errorf("Name(%v) = %q, want %q...", in, got, want)
		}

		if problems := validation.IsDNS1123Subdomain(got); len(problems) > 0 {
			t.Errorf("Name(%v) = %q: %v", in, got, problems)
		}

		if twin, ok := names[got]; ok {
			t.Errorf("%v and %v are both named %q", in, twin, got)
		}

		names[got] = in
	}

	if known.JobName(hosted("9", "https://a.example.com")) == known.JobName(hosted("9", "https://b.example.com")) {
		t.Error("the same id on two servers has one name")
	}
}
