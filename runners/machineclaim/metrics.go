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

// maxReasons limits the number of values of the label reason.
const maxReasons = 64

// Metrics observes the phases and ends of machines. A nil *Metrics observes nothing.
type Metrics struct {
	phases *prometheus.HistogramVec
	ends   *prometheus.CounterVec
	pools  *metrics.LabelLimiter
	// reasons is bounded because an untrusted machine can report a reason.
	reasons *metrics.LabelLimiter
}

// NewMetrics registers hyperfleet_machine_phase_duration_seconds{namespace,pool,phase} and
// hyperfleet_machine_ended_total{namespace,pool,reason}. Phases are constants. The numbers of pools and of
// reasons are limited.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		phases: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "hyperfleet",
			Subsystem: "machine",
			Name:      "phase_duration_seconds",
			Help: "Duration of the phases of a machine in seconds: credential (request to response), provisioned (placed, or " +
				"activated from standby, until powered on), bootstrapped (powered on until the runner is online), " +
				"job (started until the machine is off), destroyed (off until the machine is deleted).",
			Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 900, 3600},
		}, []string{"namespace", "pool", "phase"}),
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "hyperfleet",
			Subsystem: "machine",
			Name:      "ended_total",
			Help:      "Machines that have ended, by the reason in status.endReason of their claim. JobDone means success.",
		}, []string{"namespace", "pool", "reason"}),
		pools: metrics.NewLabelLimiter(metrics.MaxPools), reasons: metrics.NewLabelLimiter(maxReasons),
	}

	for _, collector := range []prometheus.Collector{m.phases, m.ends} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register machine metrics: %w", err)
		}
	}

	return m, nil
}

func (m *Metrics) observePhase(claim *v1alpha1.MachineClaim, phase string, duration time.Duration) {
	if m != nil {
		m.phases.WithLabelValues(append(m.poolLabels(claim), phase)...).Observe(duration.Seconds())
	}
}

// ObserveCredential records how long the CI platform took to issue the credential of a claim's machine.
func (m *Metrics) ObserveCredential(claim *v1alpha1.MachineClaim, duration time.Duration) {
	m.observePhase(claim, "credential", duration)
}

func (m *Metrics) countEnded(claim *v1alpha1.MachineClaim, reason string) {
	if m != nil {
		m.ends.WithLabelValues(append(m.poolLabels(claim), m.reasons.Limit(reason))...).Inc()
	}
}

// poolLabels returns the labels namespace and pool of a claim. The label pool is empty if no pool has
// created the claim.
func (m *Metrics) poolLabels(claim *v1alpha1.MachineClaim) []string {
	return m.pools.LimitAll(claim.Namespace, claim.PoolName())
}
