// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/kit/metrics"
)

// Results of a run.
const (
	resultOK         = "ok"
	resultIncomplete = "incomplete"
	resultStopped    = "stopped"
	resultError      = "error"
)

type runMetrics struct {
	runs     *prometheus.CounterVec
	objects  *prometheus.GaugeVec
	deleted  prometheus.Counter
	duration prometheus.Histogram
	last     prometheus.Gauge
}

// newMetrics makes hyperfleet_sweep_runs_total{result}, _objects{outcome} (of the last
// run), _deletions_total, _duration_seconds and _last_complete_run_timestamp_seconds.
func newMetrics(registry prometheus.Registerer) (*runMetrics, error) {
	const subsystem = "sweep"

	m := &runMetrics{
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: metrics.Namespace, Subsystem: subsystem, Name: "runs_total",
			Help: "Runs by result: ok, incomplete (something could not be looked at or deleted), stopped (by a limit), error.",
		}, []string{"result"}),
		objects: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: metrics.Namespace, Subsystem: subsystem, Name: "objects",
			Help: "Objects with our label in the last run, by what became of them.",
		}, []string{"outcome"}),
		deleted: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: metrics.Namespace, Subsystem: subsystem, Name: "deletions_total",
			Help: "Objects deleted because their resource is gone.",
		}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: metrics.Namespace, Subsystem: subsystem, Name: "duration_seconds",
			Help: "How long runs took, in seconds.", Buckets: metrics.PhaseBuckets(),
		}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: metrics.Namespace, Subsystem: subsystem, Name: "last_complete_run_timestamp_seconds",
			Help: "When the last run ended that looked at everything, in seconds since 1970.",
		}),
	}

	for _, outcome := range []string{Kept, Skipped, WouldDelete, Deleted, Failed} {
		m.objects.WithLabelValues(outcome)
	}

	for _, result := range []string{resultOK, resultIncomplete, resultStopped, resultError} {
		m.runs.WithLabelValues(result)
	}

	if registry == nil {
		return m, nil
	}

	var errs []error
	for _, c := range []prometheus.Collector{m.runs, m.objects, m.deleted, m.duration, m.last} {
		errs = append(errs, registry.Register(c))
	}

	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register metrics of sweep: %w", err)
	}

	return m, nil
}

func (m *runMetrics) observe(report *Report, err error, now time.Time) {
	m.duration.Observe(report.DurationSeconds)

	switch {
	case err != nil:
		m.runs.WithLabelValues(resultError).Inc()

		return
	case report.Stopped != "":
		m.runs.WithLabelValues(resultStopped).Inc()
	case report.Incomplete():
		m.runs.WithLabelValues(resultIncomplete).Inc()
	default:
		m.runs.WithLabelValues(resultOK).Inc()
		m.last.Set(float64(now.Unix()))
	}

	for _, outcome := range []string{Kept, Skipped, WouldDelete, Deleted, Failed} {
		m.objects.WithLabelValues(outcome).Set(float64(report.Outcomes[outcome]))
	}

	m.deleted.Add(float64(report.Outcomes[Deleted]))
}
