// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/networking/alloc"
)

// Collector reads these metrics from an address registry at each scrape:
//
//   - hyperfleet_ippool_size{network,pool,family}: addresses in the pool
//   - hyperfleet_ippool_free{network,pool,family}: free addresses in the pool
//   - hyperfleet_ippool_waiting{network,pool}: machines that wait for an address
type Collector struct {
	addresses           *AddressRegistry
	size, free, waiting *prometheus.Desc
}

// NewCollector returns the collector of an address registry.
func NewCollector(a *AddressRegistry) *Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("hyperfleet_ippool_"+name, help, labels, nil)
	}

	return &Collector{
		addresses: a,
		size:      desc("size", "Number of addresses of a family in a pool.", "network", "pool", "family"),
		free:      desc("free", "Number of free addresses of a family in a pool.", "network", "pool", "family"),
		waiting:   desc("waiting", "Number of machines that wait for an address of a pool.", "network", "pool"),
	}
}

// Describe sends the descriptions of the metrics.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.size
	ch <- c.free
	ch <- c.waiting
}

// Collect reads the metrics from the address registry.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, s := range c.addresses.Statuses() {
		ch <- prometheus.MustNewConstMetric(c.waiting, prometheus.GaugeValue, float64(s.Waiting), s.Network, s.Name)

		for family, usage := range map[alloc.Family]alloc.Usage{alloc.IPv4: s.IPv4, alloc.IPv6: s.IPv6} {
			if usage.Size == 0 {
				continue
			}

			labels := []string{s.Network, s.Name, family.String()}
			ch <- prometheus.MustNewConstMetric(c.size, prometheus.GaugeValue, float64(usage.Size), labels...)
			ch <- prometheus.MustNewConstMetric(c.free, prometheus.GaugeValue, float64(usage.Free), labels...)
		}
	}
}
