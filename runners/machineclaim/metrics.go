// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
)

// maxReasons bounds the reasons of ends that are told apart.
const maxReasons = 64

// Metrics are the numbers of machines' lives. A nil *Metrics takes nothing.
type Metrics struct {
	phases *prometheus.HistogramVec
	ends   *prometheus.CounterVec
	pools  *metrics.Bounded
	// reasons may be words of a machine, which is not ours.
	reasons *metrics.Bounded
}

// NewMetrics registers hyperfleet_machine_phase_duration_seconds{namespace,pool,phase} and
// hyperfleet_machine_ended_total{namespace,pool,reason}. Phases and reasons are words of this
// package and of the guest; pools are bounded.
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
		}, []string{"namespace", "pool", "phase"}),
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "hyperfleet",
			Subsystem: "machine",
			Name:      "ended_total",
			Help:      "Machines whose life ended, by the reason in their claim's status.endReason. JobDone is success.",
		}, []string{"namespace", "pool", "reason"}),
		pools: metrics.NewBounded(metrics.MaxPools), reasons: metrics.NewBounded(maxReasons),
	}

	for _, collector := range []prometheus.Collector{m.phases, m.ends} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register machine metrics: %w", err)
		}
	}

	return m, nil
}

func (m *Metrics) phase(claim *v1alpha1.MachineClaim, phase string, took time.Duration) {
	if m != nil {
		m.phases.WithLabelValues(append(m.poolOf(claim), phase)...).Observe(took.Seconds())
	}
}

// Issued counts a credential of a claim's machine that took so long to make.
func (m *Metrics) Issued(claim *v1alpha1.MachineClaim, took time.Duration) {
	m.phase(claim, "credential", took)
}

func (m *Metrics) ended(claim *v1alpha1.MachineClaim, reason string) {
	if m != nil {
		m.ends.WithLabelValues(append(m.poolOf(claim), m.reasons.Value(reason))...).Inc()
	}
}

// poolOf gives the labels of a claim's pool, which is empty where no pool made the claim.
func (m *Metrics) poolOf(claim *v1alpha1.MachineClaim) []string {
	pool := ""
	if ref := claim.Spec.RunnerPoolRef; ref != nil {
		pool = ref.Name
	}

	return m.pools.Values(claim.Namespace, pool)
}
