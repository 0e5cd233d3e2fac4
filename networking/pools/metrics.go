// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/networking/alloc"
)

// Collector reads an address registry's metrics out of it at each scrape:
//
//   - hyperfleet_ippool_size{network,pool,family}: addresses that the pool gives
//   - hyperfleet_ippool_free{network,pool,family}: those that nobody has
//   - hyperfleet_ippool_waiting{network,pool}: machines that asked in vain
type Collector struct {
	addresses           *AddressRegistry
	size, free, waiting *prometheus.Desc
}

// NewCollector makes the collector of an address registry.
func NewCollector(b *AddressRegistry) *Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("hyperfleet_ippool_"+name, help, labels, nil)
	}

	return &Collector{
		addresses: b,
		size:      desc("size", "How many addresses of a family a pool gives.", "network", "pool", "family"),
		free:      desc("free", "How many addresses of a family of a pool nobody has.", "network", "pool", "family"),
		waiting:   desc("waiting", "How many machines wait for an address of a pool.", "network", "pool"),
	}
}

// Describe gives the metrics' names.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.size
	ch <- c.free
	ch <- c.waiting
}

// Collect reads the address registry.
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
