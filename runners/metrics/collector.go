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
	"github.com/hyperfleet/hyperfleet/kit/watch"
)

const (
	// collectTimeout is the timeout of the reads for one scrape.
	collectTimeout = 5 * time.Second
	// maxReasons limits the distinct values of the label reason.
	maxReasons = 64
)

// Collector is a prometheus.Collector that counts the objects in the cache.
type Collector struct {
	reader  client.Reader
	elected <-chan struct{}
	clock   clock.PassiveClock
	reasons *kit.LabelLimiter

	pools    poolDescs
	clusters clusterDescs
	// runnerAge is the age of releases of the runner that machines do not run.
	runnerAge *prometheus.Desc
}

// NewCollector returns a Collector that reads from a cache. The Collector returns no metrics before
// elected is closed, because a query would otherwise add up the numbers of several replicas.
func NewCollector(reader client.Reader, elected <-chan struct{}, c clock.PassiveClock) *Collector {
	return &Collector{
		reader: reader, elected: elected, clock: c, reasons: kit.NewLabelLimiter(maxReasons),
		pools: newPoolDescs(), clusters: newClusterDescs(), runnerAge: newRunnerAgeDesc(),
	}
}

// Describe sends the descriptions of the metrics.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	c.pools.describe(ch)
	c.clusters.describe(ch)
	ch <- c.runnerAge
}

// Collect counts the objects and sends the metrics. If a read fails, it sends an invalid metric.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	select {
	case <-c.elected:
	default:
		return
	}

	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()

	var (
		pools     v1alpha1.RunnerPoolList
		clusters  v1alpha1.HypervisorClusterList
		templates v1alpha1.HypervisorMachineTemplateList
	)

	var errs []error
	for _, list := range []client.ObjectList{&pools, &clusters, &templates} {
		errs = append(errs, c.reader.List(ctx, list, client.UnsafeDisableDeepCopy))
	}

	jobs, err := watch.ListCached[*v1alpha1.RunnerJob](ctx, c.reader, &v1alpha1.RunnerJobList{})
	errs = append(errs, err)

	claims, err := watch.ListCached[*v1alpha1.MachineClaim](ctx, c.reader, &v1alpha1.MachineClaimList{})
	errs = append(errs, err)

	if err := errors.Join(errs...); err != nil {
		ch <- prometheus.NewInvalidMetric(c.pools.desired, err)

		return
	}

	c.pools.collect(ch, pools.Items)
	c.pools.collectJobs(ch, jobs, c.reasons, c.clock.Now())
	c.pools.collectMachines(ch, claims)
	c.clusters.collect(ch, clusters.Items)
	collectRunnerAges(ch, c.runnerAge, templates.Items, c.clock.Now())
}

// newDesc returns the description of a metric of HyperFleet.
func newDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(kit.Namespace, "", name), help, labels, nil)
}

func sendGauge[N int | int32 | int64 | float64](ch chan<- prometheus.Metric, desc *prometheus.Desc, value N, labels ...string) {
	ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
}

// boolToInt returns 1 for true and 0 for false.
func boolToInt(holds bool) int {
	if holds {
		return 1
	}

	return 0
}
