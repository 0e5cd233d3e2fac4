// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	kit "github.com/hyperfleet/hyperfleet/kit/metrics"
)

const (
	// collectTimeout bounds the reading for one scrape.
	collectTimeout = 5 * time.Second
	// maxReasons bounds the reasons for which jobs wait that are told apart.
	maxReasons = 64
)

// Collector counts what the cache holds.
type Collector struct {
	reader  client.Reader
	elected <-chan struct{}
	clock   clock.PassiveClock
	reasons *kit.Bounded

	pools    poolDescs
	clusters clusterDescs
}

// NewCollector makes the collector on top of a cache. It gives nothing before elected is
// closed: the numbers of several replicas would else be added up.
func NewCollector(reader client.Reader, elected <-chan struct{}, timer clock.PassiveClock) *Collector {
	return &Collector{
		reader: reader, elected: elected, clock: timer, reasons: kit.NewBounded(maxReasons),
		pools: newPoolDescs(), clusters: newClusterDescs(),
	}
}

// Describe gives the metrics' names.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	c.pools.describe(ch)
	c.clusters.describe(ch)
}

// Collect counts.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	select {
	case <-c.elected:
	default:
		return
	}

	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()

	var (
		pools    v1alpha1.RunnerPoolList
		jobs     v1alpha1.RunnerJobList
		claims   v1alpha1.MachineClaimList
		clusters v1alpha1.HypervisorClusterList
	)

	var failed []error
	for _, list := range []client.ObjectList{&pools, &jobs, &claims, &clusters} {
		failed = append(failed, c.reader.List(ctx, list, client.UnsafeDisableDeepCopy))
	}

	if err := errors.Join(failed...); err != nil {
		ch <- prometheus.NewInvalidMetric(c.pools.desired, err)

		return
	}

	c.pools.collect(ch, pools.Items)
	c.pools.collectJobs(ch, jobs.Items, c.reasons, c.clock.Now())
	c.pools.collectMachines(ch, claims.Items)
	c.clusters.collect(ch, clusters.Items)
}

// desc is a metric of the area.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(kit.Namespace, "", name), help, labels, nil)
}

func gauge[N int | int32 | int64 | float64](ch chan<- prometheus.Metric, desc *prometheus.Desc, value N, labels ...string) {
	ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
}

// one is 1 where something holds, else 0.
func one(holds bool) int {
	if holds {
		return 1
	}

	return 0
}
