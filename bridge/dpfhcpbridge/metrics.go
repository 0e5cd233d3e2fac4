// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dpfhcpbridge

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
)

// collectTimeout bounds the counting for one scrape.
const collectTimeout = 5 * time.Second

// Collector gives hyperfleet_bridge_bridges{phase}: how many bridges are in each phase.
type Collector struct {
	reader  client.Reader
	bridges *prometheus.Desc
}

// NewCollector makes the collector on top of a cache of bridges.
func NewCollector(reader client.Reader) *Collector {
	return &Collector{reader: reader, bridges: prometheus.NewDesc("hyperfleet_bridge_bridges",
		"How many bridges are in a phase.", []string{"phase"}, nil)}
}

// Describe gives the metric's name.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) { ch <- c.bridges }

// Collect counts the bridges of the cache.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()

	var bridges v1alpha1.DPFHCPBridgeList
	if err := c.reader.List(ctx, &bridges, client.UnsafeDisableDeepCopy); err != nil {
		ch <- prometheus.NewInvalidMetric(c.bridges, err)

		return
	}

	count := map[v1alpha1.DPFHCPBridgePhase]int{
		v1alpha1.PhasePending: 0, v1alpha1.PhaseProvisioning: 0, v1alpha1.PhaseReady: 0,
		v1alpha1.PhaseFailed: 0, v1alpha1.PhaseDeleting: 0,
	}

	for i := range bridges.Items {
		if phase := bridges.Items[i].Status.Phase; phase != "" {
			count[phase]++
		}
	}

	for phase, n := range count {
		ch <- prometheus.MustNewConstMetric(c.bridges, prometheus.GaugeValue, float64(n), string(phase))
	}
}
