// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/rollout"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
)

// Metrics reports the number of hosts of each fleet. All methods of a nil *Metrics do nothing.
type Metrics struct{ hosts *prometheus.GaugeVec }

// NewMetrics registers hyperfleet_host_fleet_hosts with the labels namespace, fleet and state
// (converged, drifted, failed, unreachable, pushing). A host may be in several states.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{hosts: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: metrics.Namespace,
		Subsystem: "host_fleet",
		Name:      "hosts",
		Help:      "Hosts of a fleet by their state.",
	}, []string{"namespace", "fleet", "state"})}

	if err := registerer.Register(m.hosts); err != nil {
		return nil, fmt.Errorf("register metrics of fleets: %w", err)
	}

	return m, nil
}

func (m *Metrics) set(fleet *v1alpha1.HostFleet, report rollout.Report) {
	if m == nil {
		return
	}

	for state, n := range map[string]int{
		"converged": report.Converged, "drifted": report.Drifted, "failed": report.Failed,
		"unreachable": report.Unreachable, "pushing": len(fleet.Status.Permits),
	} {
		m.hosts.WithLabelValues(fleet.Namespace, fleet.Name, state).Set(float64(n))
	}
}

func (m *Metrics) deleteFleet(namespace, fleet string) {
	if m != nil {
		m.hosts.DeletePartialMatch(prometheus.Labels{"namespace": namespace, "fleet": fleet})
	}
}
