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

// maxConclusions limits the distinct values of the label conclusion, which the platforms define.
const maxConclusions = 16

// The optional labels of JobMetrics, in addition to namespace and pool.
const (
	JobLabelRepository = "repository"
	JobLabelWorkflow   = "workflow"
)

// JobMetrics measures the queue time, the run time and the conclusion of jobs. The methods of a nil
// *JobMetrics do nothing.
type JobMetrics struct {
	queueDuration, runDuration *prometheus.HistogramVec
	finished                   *prometheus.CounterVec
	extraLabels                []string
	pools, conclusions         *metrics.LabelLimiter
	combinations               *metrics.LabelLimiter
}

// NewJobMetrics registers hyperfleet_job_queue_duration_seconds{namespace,pool},
// hyperfleet_job_run_duration_seconds{namespace,pool} and
// hyperfleet_job_finished_total{namespace,pool,conclusion}. extraLabels may add the labels
// repository and workflow. maxCombinations limits the distinct combinations of their values.
func NewJobMetrics(registerer prometheus.Registerer, extraLabels []string, maxCombinations int) (*JobMetrics, error) {
	labels := append([]string{"namespace", "pool"}, extraLabels...)
	histogram := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: metrics.Namespace, Subsystem: "job", Name: name, Help: help, Buckets: metrics.PoolBuckets(),
		}, labels)
	}

	m := &JobMetrics{
		queueDuration: histogram(
			"queue_duration_seconds",
			"Time from the platform's job queue until a runner took the job, in seconds.",
		),
		runDuration: histogram("run_duration_seconds", "Run time of jobs, in seconds."),
		finished: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: metrics.Namespace, Subsystem: "job", Name: "finished_total",
			Help: "Completed jobs, by the platform's conclusion, including jobs that no runner took.",
		}, append(slices.Clone(labels), "conclusion")),
		extraLabels:  extraLabels,
		pools:        metrics.NewLabelLimiter(metrics.MaxPools),
		conclusions:  metrics.NewLabelLimiter(maxConclusions),
		combinations: metrics.NewLabelLimiter(maxCombinations),
	}

	for _, collector := range []prometheus.Collector{m.queueDuration, m.runDuration, m.finished} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register job metrics: %w", err)
		}
	}

	return m, nil
}

// observe counts an event that the job's previous timeline did not have.
func (m *JobMetrics) observe(job *v1alpha1.RunnerJob, event v1alpha1.JobEvent) {
	if m == nil {
		return
	}

	switch event.Moment {
	case v1alpha1.MomentStarted:
		if since := firstTime(job.Status.Timeline, v1alpha1.MomentQueued, v1alpha1.MomentReceived); !since.IsZero() {
			m.queueDuration.WithLabelValues(m.labelValues(job)...).Observe(max(event.Time.Sub(since), 0).Seconds())
		}
	case v1alpha1.MomentFinished:
		labels := m.labelValues(job)
		m.finished.WithLabelValues(append(slices.Clone(labels), m.conclusions.Limit(job.Spec.Conclusion))...).Inc()

		if since := firstTime(job.Status.Timeline, v1alpha1.MomentStarted); !since.IsZero() {
			m.runDuration.WithLabelValues(labels...).Observe(max(event.Time.Sub(since), 0).Seconds())
		}
	default:
	}
}

// labelValues returns the label values of a job, in the order of the metrics' labels.
func (m *JobMetrics) labelValues(job *v1alpha1.RunnerJob) []string {
	out := slices.Clone(m.pools.LimitAll(job.Namespace, job.Status.Pool))

	values := make([]string, 0, len(m.extraLabels))

	for _, label := range m.extraLabels {
		value := job.Spec.Repository
		if label == JobLabelWorkflow {
			value = job.Spec.Workflow
		}

		values = append(values, value)
	}

	if len(values) > 0 {
		out = append(out, m.combinations.LimitAll(values...)...)
	}

	return out
}

// firstTime returns the time of the first of the given kinds of events that the timeline has. It returns
// zero if the timeline has none of them.
func firstTime(timeline []v1alpha1.JobEvent, kinds ...v1alpha1.JobMoment) time.Time {
	for _, kind := range kinds {
		i := slices.IndexFunc(timeline, func(e v1alpha1.JobEvent) bool { return e.Moment == kind })
		if i >= 0 {
			return timeline[i].Time.Time
		}
	}

	return time.Time{}
}
