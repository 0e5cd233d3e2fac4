// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/workload"
)

// Metrics counts webhooks, job sources, and calls to platforms for jobs whose webhooks are missing.
// The methods of a nil *Metrics do nothing.
type Metrics struct {
	webhooks    *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	stateChecks *prometheus.CounterVec
	sources     *prometheus.CounterVec
}

// NewMetrics registers hyperfleet_webhooks_total{platform,result},
// hyperfleet_webhook_duration_seconds{platform}, hyperfleet_job_state_checks_total{platform,result} and
// hyperfleet_job_sources_total{platform,source,result}. The number of label values is limited: a
// platform is one that has a parser, or "unknown", and a result is a constant of this package.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		webhooks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "hyperfleet", Name: "webhooks_total",
			Help: "Webhooks handled, by result; accepted webhooks are recorded as RunnerJobs.",
		}, []string{"platform", "result"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "hyperfleet", Name: "webhook_duration_seconds",
			Help:    "Time from the first byte of a webhook to its response, in seconds.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 8, 10},
		}, []string{"platform"}),
		stateChecks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "hyperfleet", Name: "job_state_checks_total",
			Help: "Calls to a CI platform about a job without recent webhooks, by result; moved means that a webhook was missed.",
		}, []string{"platform", "result"}),
	}

	m.sources = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "hyperfleet", Name: "job_sources_total",
		Help: "Polls, redelivery requests and ended streams of a CI platform, by result.",
	}, []string{"platform", "source", "result"})

	for _, collector := range []prometheus.Collector{m.webhooks, m.duration, m.stateChecks, m.sources} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics of jobs: %w", err)
		}
	}

	return m, nil
}

func (m *Metrics) observeWebhook(platform, result string, took time.Duration) {
	if m == nil {
		return
	}

	m.webhooks.WithLabelValues(platform, result).Inc()
	m.duration.WithLabelValues(platform).Observe(took.Seconds())
}

func (m *Metrics) countStateCheck(platform, result string) {
	if m != nil {
		m.stateChecks.WithLabelValues(platform, result).Inc()
	}
}

// countSourceRequest counts a poll, a redelivery request or an ended stream of a CI platform by its result.
func (m *Metrics) countSourceRequest(platform, source string, err error) {
	if m == nil {
		return
	}

	result := "done"

	switch {
	case workload.Is(err, workload.RateLimited):
		result = "rateLimited"
	case workload.Is(err, workload.Rejected):
		result = "rejected"
	case err != nil:
		result = "failed"
	}

	m.sources.WithLabelValues(platform, source, result).Inc()
}
