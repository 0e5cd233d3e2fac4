// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/kit/watch"
)

const (
	collectTimeout = 5 * time.Second
	// maxObjectSeries is the maximum number of objects of a kind that have a series of their own.
	maxObjectSeries = 500
	// maxReasons is the maximum number of distinct reasons of a kind. Further reasons become "other".
	maxReasons = 64
)

// ReadinessKind is a kind of objects whose readiness is exported.
type ReadinessKind struct {
	// Name is the kind as in manifests.
	Name string
	// NewList returns an empty list of the kind.
	NewList func() client.ObjectList
	// PerObject adds a series for each object. Set it for objects that people create, and not for objects
	// that are created and deleted with jobs.
	PerObject bool
}

// ReadinessCollector collects hyperfleet_objects{kind,namespace,ready,reason}, and for kinds with PerObject also
// hyperfleet_object_ready{kind,namespace,name}.
type ReadinessCollector struct {
	reader  client.Reader
	elected <-chan struct{}
	kinds   []ReadinessKind
	reasons map[string]*metrics.LabelLimiter

	countDesc, objectDesc *prometheus.Desc
}

// NewReadinessCollector returns a collector that reads from a cache (see watch.ListCached). It collects nothing until elected
// is closed.
func NewReadinessCollector(reader client.Reader, elected <-chan struct{}, kinds ...ReadinessKind) *ReadinessCollector {
	out := &ReadinessCollector{
		reader: reader, elected: elected, kinds: kinds, reasons: map[string]*metrics.LabelLimiter{},
		countDesc: prometheus.NewDesc("hyperfleet_objects",
			"Objects of a kind by their condition Ready (True, False, Unknown) and its reason.",
			[]string{"kind", "namespace", "ready", "reason"}, nil),
		objectDesc: prometheus.NewDesc("hyperfleet_object_ready",
			"1 if the object's condition Ready is True, else 0. At most 500 objects of a kind have this metric.",
			[]string{"kind", "namespace", "name"}, nil),
	}
	for _, kind := range kinds {
		out.reasons[kind.Name] = metrics.NewLabelLimiter(maxReasons)
	}

	return out
}

// Describe sends the descriptions of the metrics.
func (c *ReadinessCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.countDesc
	ch <- c.objectDesc
}

// Collect reads the cache and sends the metrics. If the objects of one kind cannot be read, Collect
// sends an invalid metric for that kind and still collects the other kinds.
func (c *ReadinessCollector) Collect(ch chan<- prometheus.Metric) {
	select {
	case <-c.elected:
	default:
		return
	}

	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()

	for _, kind := range c.kinds {
		// If the CRD of a kind is not installed, the kind has no objects.
		if err := c.collectKind(ctx, ch, kind); err != nil && !meta.IsNoMatchError(err) {
			ch <- prometheus.NewInvalidMetric(c.countDesc, err)
		}
	}
}

// collectKind sends the metrics of one kind.
func (c *ReadinessCollector) collectKind(ctx context.Context, ch chan<- prometheus.Metric, kind ReadinessKind) error {
	items, err := watch.ListCached[client.Object](ctx, c.reader, kind.NewList())
	if err != nil {
		return fmt.Errorf("list %s: %w", kind.Name, err)
	}

	type group struct{ namespace, ready, reason string }

	count := map[group]int{}

	for i, item := range items {
		obj, ok := item.(Object)
		if !ok {
			return fmt.Errorf("read list of %s: type %T has no conditions", kind.Name, item)
		}

		status, reason := metav1.ConditionUnknown, "NotReconciled"
		if condition := meta.FindStatusCondition(*obj.StatusConditions(), Ready); condition != nil {
			status, reason = condition.Status, condition.Reason
		}

		count[group{obj.GetNamespace(), string(status), c.reasons[kind.Name].Limit(reason)}]++

		if kind.PerObject && i < maxObjectSeries {
			value := 0.0
			if status == metav1.ConditionTrue {
				value = 1
			}

			ch <- prometheus.MustNewConstMetric(c.objectDesc, prometheus.GaugeValue, value, kind.Name, obj.GetNamespace(), obj.GetName())
		}
	}

	for g, n := range count {
		ch <- prometheus.MustNewConstMetric(c.countDesc, prometheus.GaugeValue, float64(n), kind.Name, g.namespace, g.ready, g.reason)
	}

	return nil
}
