// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/kit/metrics"
)

// Reasons why an evaluation of a resource sent no event.
const (
	skippedNotDue  = "not_due"
	skippedStandby = "standby"
	skippedError   = "expression_error"
	skippedBackoff = "publish_backoff"
)

// Calls that failed, as labels of metrics.
const (
	errorList    = "list"
	errorChanges = "changes"
	errorLease   = "lease"
	errorPublish = "publish"
)

type sentinelMetrics struct {
	known, leader, conflict, lastPoll    prometheus.Gauge
	published, skipped                   *prometheus.CounterVec
	apiErrors, brokerErrors              *prometheus.CounterVec
	expressionErrors, pages, cursorsGone prometheus.Counter
	pollDuration                         prometheus.Observer
}

func newMeters(
	registerer prometheus.Registerer, resourceType, selector string, pending func() float64,
) (*sentinelMetrics, error) {
	set := metrics.NewSet("sentinel", prometheus.Labels{"resource_type": resourceType, "resource_selector": selector})
	m := &sentinelMetrics{
		known:     set.NewGauge("known_resources", "Resources that match the selector."),
		leader:    set.NewGauge("leader", "1 if this replica is the leader, which sends the events."),
		conflict:  set.NewGauge("lease_conflict", "1 while a process with another configuration has the lease of this one."),
		lastPoll:  set.NewGauge("last_successful_poll_timestamp_seconds", "When the API last responded to a list or a change request."),
		published: set.NewCounterVec("events_published_total", "Events sent, by reason.", "reason"),
		skipped:   set.NewCounterVec("resources_skipped_total", "Evaluations of resources that sent no event, by reason.", "reason"),
		apiErrors: set.NewCounterVec("api_errors_total",
			"Calls of the API that failed after their retries: list, changes, lease.", "error_type"),
		brokerErrors: set.NewCounterVec("broker_errors_total", "Events that could not be sent and are retried.", "error_type"),
		expressionErrors: set.NewCounter("expression_errors_total",
			"Failed evaluations of message_decision or message_data, for which no event was sent."),
		pages: set.NewCounter("list_pages_total", "Pages read by lists."),
		cursorsGone: set.NewCounter("change_cursors_gone_total",
			"How often all resources were listed because the change feed no longer had the changes after the cursor."),
		pollDuration: set.NewHistogramVec("poll_duration_seconds", "Duration of one evaluation of all known resources, in seconds.",
			[]float64{.001, .005, .01, .05, .1, .5, 1, 2, 5, 10}).WithLabelValues(),
	}

	set.NewGaugeFunc("pending_resources",
		"Resources whose event is due and not yet sent; 0 if this replica is not the leader.", pending)

	return m, set.Register(registerer)
}

// setFlag sets a gauge that is 1 or 0.
func setFlag(gauge prometheus.Gauge, isTrue bool) {
	if isTrue {
		gauge.Set(1)
	} else {
		gauge.Set(0)
	}
}
