// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the numbers of machines' lives. A nil *Metrics takes nothing.
type Metrics struct {
	phases *prometheus.HistogramVec
	ends   *prometheus.CounterVec
}

// NewMetrics registers hyperfleet_machine_phase_duration_seconds{phase} and
// hyperfleet_machine_ended_total{reason}. Both labels take words of this package only.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		phases: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "hyperfleet",
			Subsystem: "machine",
			Name:      "phase_duration_seconds",
			Help: "How long a machine's phases took, in seconds: credential (asked for until had), provisioned " +
				"(placed, or told to start from standby, until powered on), bootstrapped (powered on until its " +
				"runner was online), job (taken until the machine was off), destroyed (off until nothing was left).",
			Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 900, 3600},
		}, []string{"phase"}),
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "hyperfleet",
			Subsystem: "machine",
			Name:      "ended_total",
			Help:      "Machines whose life ended, by the reason in their claim's status.endReason. JobDone is success.",
		}, []string{"reason"}),
	}

	for _, collector := range []prometheus.Collector{m.phases, m.ends} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register machine metrics: %w", err)
		}
	}

	return m, nil
}

func (m *Metrics) phase(phase string, took time.Duration) {
	if m != nil {
		m.phases.WithLabelValues(phase).Observe(took.Seconds())
	}
}

// Issued counts a credential that took so long to make.
func (m *Metrics) Issued(took time.Duration) { m.phase("credential", took) }

func (m *Metrics) ended(reason string) {
	if m != nil {
		m.ends.WithLabelValues(reason).Inc()
	}
}
