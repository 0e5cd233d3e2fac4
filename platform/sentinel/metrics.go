// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/kit/metrics"
)

// Reasons why a resource got no event when it was looked at.
const (
	skippedFresh   = "not_due"
	skippedStandby = "standby"
	skippedError   = "expression_error"
	skippedBackoff = "publish_backoff"
)

// Where errors of the API came up.
const (
	errorList    = "list"
	errorChanges = "changes"
	errorLease   = "lease"
	errorPublish = "publish"
)

type meters struct {
	pending, known, leader, lastPoll prometheus.Gauge
	published, skipped               *prometheus.CounterVec
	apiErrors, brokerErrors          *prometheus.CounterVec
	expressions, pages, cursorsGone  prometheus.Counter
	pass                             prometheus.Histogram
}

func newMeters(registerer prometheus.Registerer, resourceType, selector string) (*meters, error) {
	labels := prometheus.Labels{"resource_type": resourceType, "resource_selector": selector}
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{
			Namespace: metrics.Namespace, Subsystem: "sentinel", Name: name, Help: help, ConstLabels: labels,
		}
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts(opts(name, help)))
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts(opts(name, help)))
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts(opts(name, help)), []string{label})
	}
	m := &meters{
		pending:      gauge("pending_resources", "Resources whose event is due and not yet sent."),
		known:        gauge("known_resources", "Resources that match the selector."),
		leader:       gauge("leader", "1 if this replica is the one that sends events."),
		lastPoll:     gauge("last_successful_poll_timestamp_seconds", "When the API last answered a list or the change feed."),
		published:    vec("events_published_total", "Events sent, by why.", "reason"),
		skipped:      vec("resources_skipped_total", "Resources that were looked at and got no event, by why.", "reason"),
		apiErrors:    vec("api_errors_total", "Calls of the API that failed after their retries: list, changes, lease.", "error_type"),
		brokerErrors: vec("broker_errors_total", "Events that could not be sent; they are tried again.", "error_type"),
		expressions: counter("expression_errors_total",
			"Evaluations of message_decision or message_data that failed; the resource got no event."),
		pages:       counter("list_pages_total", "Pages of lists that were read."),
		cursorsGone: counter("change_cursors_gone_total", "Times that the change feed did not go back far enough, and all was listed."),
		pass: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: metrics.Namespace, Subsystem: "sentinel", Name: "poll_duration_seconds",
			Help: "How long one pass over all known resources took, in seconds.", ConstLabels: labels,
			Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 2, 5, 10},
		}),
	}

	if registerer == nil {
		return m, nil
	}

	for _, one := range []prometheus.Collector{
		m.pending, m.known, m.leader, m.lastPoll, m.published, m.skipped, m.apiErrors, m.brokerErrors,
		m.expressions, m.pages, m.cursorsGone, m.pass,
	} {
		if err := registerer.Register(one); err != nil {
			return nil, fmt.Errorf("register metrics of sentinel: %w", err)
		}
	}

	return m, nil
}
