// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
)

// maxConclusions bounds the conclusions that are told apart: they are the platforms' words.
const maxConclusions = 16

// Labels that JobMetrics may have beside namespace and pool.
const (
	JobLabelRepository = "repository"
	JobLabelWorkflow   = "workflow"
)

// JobMetrics are the numbers of jobs' lives. A nil *JobMetrics takes nothing.
type JobMetrics struct {
	queued, ran          *prometheus.HistogramVec
	finished             *prometheus.CounterVec
	extra                []string
	pools, conclusions   *metrics.Bounded
	repositoryOfWorkflow *metrics.Bounded
}

// NewJobMetrics registers hyperfleet_job_queue_duration_seconds{namespace,pool},
// hyperfleet_job_run_duration_seconds{namespace,pool} and
// hyperfleet_job_finished_total{namespace,pool,conclusion}. extra adds the labels repository
// and workflow; at most so many combinations of them are told apart.
func NewJobMetrics(registerer prometheus.Registerer, extra []string, most int) (*JobMetrics, error) {
	labels := append([]string{"namespace", "pool"}, extra...)
	histogram := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: metrics.Namespace, Subsystem: "job", Name: name, Help: help, Buckets: metrics.PoolBuckets(),
		}, labels)
	}

	m := &JobMetrics{
		queued: histogram(
			"queue_duration_seconds",
			"How long jobs waited from the platform's queue until a runner took them, in seconds.",
		),
		ran: histogram("run_duration_seconds", "How long jobs ran, in seconds."),
		finished: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: metrics.Namespace, Subsystem: "job", Name: "finished_total",
			Help: "Jobs that are over, by the platform's conclusion; also those that no runner took.",
		}, append(slices.Clone(labels), "conclusion")),
		extra:                extra,
		pools:                metrics.NewBounded(metrics.MaxPools),
		conclusions:          metrics.NewBounded(maxConclusions),
		repositoryOfWorkflow: metrics.NewBounded(most),
	}

	for _, collector := range []prometheus.Collector{m.queued, m.ran, m.finished} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics of jobs' lives: %w", err)
		}
	}

	return m, nil
}

// note counts a moment of a job's life that was not on record before.
func (m *JobMetrics) note(job *v1alpha1.RunnerJob, event v1alpha1.JobEvent) {
	if m == nil {
		return
	}

	switch event.Moment {
	case v1alpha1.MomentStarted:
		if since := firstOf(job.Status.Timeline, v1alpha1.MomentQueued, v1alpha1.MomentReceived); !since.IsZero() {
			m.queued.WithLabelValues(m.labels(job)...).Observe(max(event.Time.Sub(since), 0).Seconds())
		}
	case v1alpha1.MomentFinished:
		labels := m.labels(job)
		m.finished.WithLabelValues(append(slices.Clone(labels), m.conclusions.Value(job.Spec.Conclusion))...).Inc()

		if since := firstOf(job.Status.Timeline, v1alpha1.MomentStarted); !since.IsZero() {
			m.ran.WithLabelValues(labels...).Observe(max(event.Time.Sub(since), 0).Seconds())
		}
	default:
	}
}

// labels of a job, in the order that the metrics have them.
func (m *JobMetrics) labels(job *v1alpha1.RunnerJob) []string {
	out := slices.Clone(m.pools.Values(job.Namespace, job.Status.Pool))

	values := make([]string, 0, len(m.extra))

	for _, label := range m.extra {
		value := job.Spec.Repository
		if label == JobLabelWorkflow {
			value = job.Spec.Workflow
		}

		values = append(values, value)
	}

	if len(values) > 0 {
		out = append(out, m.repositoryOfWorkflow.Values(values...)...)
	}

	return out
}

// firstOf is when the first of the moments that a timeline has was; zero if it has none.
func firstOf(timeline []v1alpha1.JobEvent, moments ...v1alpha1.JobMoment) time.Time {
	for _, moment := range moments {
		i := slices.IndexFunc(timeline, func(e v1alpha1.JobEvent) bool { return e.Moment == moment })
		if i >= 0 {
			return timeline[i].Time.Time
		}
	}

	return time.Time{}
}
