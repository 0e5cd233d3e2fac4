// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/test/scrape"
)

// TestJobMetrics checks that a job is counted for its pool and, if this is configured, for its repository and its
// workflow, and that the number of their combinations is limited.
func TestJobMetrics(t *testing.T) {
	t.Parallel()

	registry := prometheus.NewRegistry()

	metrics, err := NewJobMetrics(registry, []string{JobLabelRepository, JobLabelWorkflow}, 2)
	if err != nil {
		t.Fatal(err)
	}

	start := time.Unix(0, 0)
	event := func(moment v1alpha1.JobMoment, current time.Duration) v1alpha1.JobEvent {
		return v1alpha1.JobEvent{Moment: moment, Time: metav1.NewMicroTime(start.Add(current))}
	}

	for i := range 4 {
		job := &v1alpha1.RunnerJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ci"}}
		job.Spec.Repository, job.Spec.Workflow = fmt.Sprint("acme/", i), fmt.Sprint("build ", i)
		job.Spec.Conclusion, job.Status.Pool = "success", "linux"
		job.Status.Timeline = []v1alpha1.JobEvent{
			event(v1alpha1.MomentQueued, 0), event(v1alpha1.MomentReceived, time.Second),
			event(v1alpha1.MomentStarted, 20*time.Second), event(v1alpha1.MomentFinished, 80*time.Second),
		}

		for _, change := range job.Status.Timeline {
			metrics.observe(job, change)
		}
	}

	canceled := &v1alpha1.RunnerJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ci"}}
	canceled.Spec.Conclusion = "cancelled"
	canceled.Status.Timeline = []v1alpha1.JobEvent{event(v1alpha1.MomentQueued, 0), event(v1alpha1.MomentFinished, time.Minute)}
	metrics.observe(canceled, canceled.Status.Timeline[1])

	const want = `# HELP hyperfleet_job_finished_total Completed jobs, by the platform's conclusion, including jobs that no runner took.
# TYPE hyperfleet_job_finished_total counter
hyperfleet_job_finished_total{conclusion="cancelled",namespace="ci",pool="",repository="other",workflow="other"} 1
hyperfleet_job_finished_total{conclusion="success",namespace="ci",pool="linux",repository="acme/0",workflow="build 0"} 1
hyperfleet_job_finished_total{conclusion="success",namespace="ci",pool="linux",repository="acme/1",workflow="build 1"} 1
hyperfleet_job_finished_total{conclusion="success",namespace="ci",pool="linux",repository="other",workflow="other"} 2
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "hyperfleet_job_finished_total"); err != nil {
		t.Error(err)
	}

	for name, want := range map[string]float64{
		"hyperfleet_job_queue_duration_seconds_sum": 80, "hyperfleet_job_run_duration_seconds_sum": 240,
	} {
		if got := scrape.SumOf(t, registry, name, ""); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}
