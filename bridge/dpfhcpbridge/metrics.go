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

// collectTimeout bounds the time to count the bridges for one scrape.
const collectTimeout = 5 * time.Second

// Collector implements prometheus.Collector for hyperfleet_bridge_bridges{phase}, the number of bridges
// in each phase.
type Collector struct {
	reader  client.Reader
	bridges *prometheus.Desc
}

// NewCollector returns a collector that reads bridges from a cache.
func NewCollector(reader client.Reader) *Collector {
	return &Collector{reader: reader, bridges: prometheus.NewDesc("hyperfleet_bridge_bridges",
		"The number of bridges in a phase.", []string{"phase"}, nil)}
}

// Describe sends the descriptor of the metric.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) { ch <- c.bridges }

// Collect counts the bridges in the cache and sends the metric. A phase without bridges has the value 0.
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
