// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package logstore

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Outcomes of a write.
const (
	outcomeStored  = "stored"
	outcomeFailed  = "failed"
	outcomeGivenUp = "given_up"
)

// Metrics are the numbers of logs that are stored. A nil *Metrics takes nothing.
type Metrics struct{ writes *prometheus.CounterVec }

// NewMetrics registers hyperfleet_runner_log_writes_total{outcome}.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{writes: prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "hyperfleet",
		Subsystem: "runner_log",
		Name:      "writes_total",
		Help: "Writes of runners' logs to the object store, by what became of them: stored; failed, and tried again; " +
			"given_up, and left in the cluster.",
	}, []string{"outcome"})}

	if err := registerer.Register(m.writes); err != nil {
		return nil, fmt.Errorf("register metrics of stored logs: %w", err)
	}

	// An alert can't tell a series that begins from one that grows.
	for _, outcome := range []string{outcomeStored, outcomeFailed, outcomeGivenUp} {
		m.writes.WithLabelValues(outcome)
	}

	return m, nil
}

func (m *Metrics) wrote(outcome string) {
	if m != nil {
		m.writes.WithLabelValues(outcome).Inc()
	}
}
