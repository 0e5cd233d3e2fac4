// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/workload"
)

// Metrics are the numbers of webhooks and of the repair of what they missed. A nil
// *Metrics takes nothing.
type Metrics struct {
	webhooks *prometheus.CounterVec
	duration *prometheus.HistogramVec
	repairs  *prometheus.CounterVec
	sources  *prometheus.CounterVec
}

// NewMetrics registers hyperfleet_webhooks_total{platform,result},
// hyperfleet_webhook_duration_seconds{platform},
// hyperfleet_job_repairs_total{platform,result} and
// hyperfleet_job_sources_total{platform,source,result}. Platforms are those that have a parser,
// or "unknown"; results are words of this package. So their number is bounded.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		webhooks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "hyperfleet", Name: "webhooks_total",
			Help: "Webhooks answered, by what became of them; accepted ones are in the ledger of jobs.",
		}, []string{"platform", "result"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "hyperfleet", Name: "webhook_duration_seconds",
			Help:    "How long a webhook took from its first byte to its answer, in seconds.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 8, 10},
		}, []string{"platform"}),
		repairs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "hyperfleet", Name: "job_repairs_total",
			Help: "Jobs that a CI platform was asked about for want of news; moved ones had a webhook missed.",
		}, []string{"platform", "result"}),
	}

	m.sources = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "hyperfleet", Name: "job_sources_total",
		Help: "Times that a CI platform was polled, was asked for failed webhooks, or ended a stream, by how that went.",
	}, []string{"platform", "source", "result"})

	for _, collector := range []prometheus.Collector{m.webhooks, m.duration, m.repairs, m.sources} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics of jobs: %w", err)
		}
	}

	return m, nil
}

func (m *Metrics) webhook(platform, result string, took time.Duration) {
	if m == nil {
		return
	}

	m.webhooks.WithLabelValues(platform, result).Inc()
	m.duration.WithLabelValues(platform).Observe(took.Seconds())
}

func (m *Metrics) repair(platform, result string) {
	if m != nil {
		m.repairs.WithLabelValues(platform, result).Inc()
	}
}

func (m *Metrics) source(platform, source string, err error) {
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
