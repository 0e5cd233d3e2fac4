// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/networking/pools"
)

// Collector collects the metric kubevirt_ippool_exhausted{cluster}. Its value is 1 while machines of the
// cluster wait for an address, and 0 otherwise. It has a sample for each cluster with static addresses.
type Collector struct {
	addresses *pools.AddressRegistry
	exhausted *prometheus.Desc
}

// NewCollector returns the collector of an address registry.
func NewCollector(registry *pools.AddressRegistry) *Collector {
	return &Collector{addresses: registry, exhausted: prometheus.NewDesc("kubevirt_ippool_exhausted",
		"Whether machines of a cluster wait for an address.", []string{"cluster"}, nil)}
}

// Describe sends the description of the metric.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) { ch <- c.exhausted }

// Collect returns the metric of each cluster in the address registry: 1 if a pool of the cluster waits for
// an address, otherwise 0.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	waiting := map[string]float64{}

	for _, status := range c.addresses.Statuses() {
		if status.Cluster == "" {
			continue
		}

		waiting[status.Cluster] += 0 // adds the cluster
		if status.Waiting > 0 {
			waiting[status.Cluster] = 1
		}
	}

	for cluster, value := range waiting {
		ch <- prometheus.MustNewConstMetric(c.exhausted, prometheus.GaugeValue, value, cluster)
	}
}
