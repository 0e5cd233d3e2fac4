// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/hosts/drift"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
)

// Metrics records the duration of jobs on hosts. All methods of a nil *Metrics do nothing.
type Metrics struct{ duration *prometheus.HistogramVec }

// NewMetrics registers hyperfleet_host_push_duration_seconds with the labels kind (of host), what
// (FirstBoot, Update, Repair, OSUpdate, Probe, Greet, Leave) and outcome (ok, refused, unreachable,
// host-key-changed).
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: metrics.Namespace,
		Subsystem: "host_push",
		Name:      "duration_seconds",
		Help:      "How long pushes to hosts and probes of them took, in seconds.",
		Buckets:   metrics.PhaseBuckets(),
	}, []string{"kind", "what", "outcome"})}

	if err := registerer.Register(m.duration); err != nil {
		return nil, fmt.Errorf("register metrics of hosts: %w", err)
	}

	return m, nil
}

func (m *Metrics) observe(kind string, done outcome, verdict drift.Verdict) {
	if m != nil {
		m.duration.WithLabelValues(kind, string(done.Action), string(verdict)).Observe(done.duration.Seconds())
	}
}
