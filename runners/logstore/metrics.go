// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Outcomes of an attempt to store a log.
const (
	outcomeStored  = "stored"
	outcomeFailed  = "failed"
	outcomeGivenUp = "given_up"
)

// Metrics counts attempts to store logs. A nil *Metrics counts nothing.
type Metrics struct{ writes *prometheus.CounterVec }

// NewMetrics registers hyperfleet_runner_log_writes_total{outcome}.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{writes: prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "hyperfleet",
		Subsystem: "runner_log",
		Name:      "writes_total",
		Help: "Writes of runner logs to the object store, by outcome: stored, failed (will be retried), or given_up (the log " +
			"stays in the cluster).",
	}, []string{"outcome"})}

	if err := registerer.Register(m.writes); err != nil {
		return nil, fmt.Errorf("register log store metrics: %w", err)
	}

	// Every series starts at 0, because rate() does not see the first increment of a new series.
	for _, outcome := range []string{outcomeStored, outcomeFailed, outcomeGivenUp} {
		m.writes.WithLabelValues(outcome)
	}

	return m, nil
}

func (m *Metrics) countWrite(outcome string) {
	if m != nil {
		m.writes.WithLabelValues(outcome).Inc()
	}
}
