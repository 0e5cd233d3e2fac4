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

// NewMetrics registers hyperfleet_host_push_duration_seconds with the labels kind (of host),
// operation (FirstBoot, Update, Repair, OSUpdate, Probe, Connect, RemoveCredential), outcome (ok, refused,
// unreachable, host-key-changed) and what, the former name of operation.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: metrics.Namespace,
		Subsystem: "host_push",
		Name:      "duration_seconds",
		Help:      "How long pushes to hosts and probes of them took, in seconds.",
		Buckets:   metrics.PhaseBuckets(),
	}, []string{"kind", "operation", "what", "outcome"})}

	if err := registerer.Register(m.duration); err != nil {
		return nil, fmt.Errorf("register metrics of hosts: %w", err)
	}

	return m, nil
}

func (m *Metrics) observe(kind string, finished outcome, verdict drift.Verdict) {
	if m == nil {
		return
	}

	// The label what keeps the former values.
	what := string(finished.Action)

	switch finished.Action {
	case drift.Connect:
		what = "Greet"
	case drift.RemoveCredential:
		what = "Leave"
	default:
	}

	m.duration.WithLabelValues(kind, string(finished.Action), what, string(verdict)).Observe(finished.duration.Seconds())
}
