// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
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
	known, leader, lastPoll         prometheus.Gauge
	published, skipped              *prometheus.CounterVec
	apiErrors, brokerErrors         *prometheus.CounterVec
	expressions, pages, cursorsGone prometheus.Counter
	pass                            prometheus.Observer
}

func newMeters(registerer prometheus.Registerer, resourceType, selector string, pending func() float64) (*meters, error) {
	set := metrics.NewSet("sentinel", prometheus.Labels{"resource_type": resourceType, "resource_selector": selector})
	m := &meters{
		known:     set.Gauge("known_resources", "Resources that match the selector."),
		leader:    set.Gauge("leader", "1 if this replica is the one that sends events."),
		lastPoll:  set.Gauge("last_successful_poll_timestamp_seconds", "When the API last answered a list or the change feed."),
		published: set.Counters("events_published_total", "Events sent, by why.", "reason"),
		skipped:   set.Counters("resources_skipped_total", "Resources that were looked at and got no event, by why.", "reason"),
		apiErrors: set.Counters("api_errors_total",
			"Calls of the API that failed after their retries: list, changes, lease.", "error_type"),
		brokerErrors: set.Counters("broker_errors_total", "Events that could not be sent; they are tried again.", "error_type"),
		expressions: set.Counter("expression_errors_total",
			"Evaluations of message_decision or message_data that failed; the resource got no event."),
		pages: set.Counter("list_pages_total", "Pages of lists that were read."),
		cursorsGone: set.Counter("change_cursors_gone_total",
			"Times that the change feed did not go back far enough, and all was listed."),
		pass: set.Histograms("poll_duration_seconds", "How long one pass over all known resources took, in seconds.",
			[]float64{.001, .005, .01, .05, .1, .5, 1, 2, 5, 10}).WithLabelValues(),
	}

	set.GaugeOf("pending_resources", "Resources whose event is due and not yet sent.", pending)

	return m, set.Register(registerer)
}
