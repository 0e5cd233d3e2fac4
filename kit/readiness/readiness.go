// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package readiness

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

const (
	collectTimeout = 5 * time.Second
	// maxNamed bounds the objects of a kind that have a series of their own.
	maxNamed = 500
	// maxReasons bounds the reasons of a kind that are told apart.
	maxReasons = 64
)

// Kind is a kind whose readiness is told.
type Kind struct {
	// Name of the kind, as in manifests.
	Name string
	// List makes an empty list of it.
	List func() client.ObjectList
	// Named says that each object has a series: for what people write, and not for what comes
	// and goes with jobs.
	Named bool
}

// Collector gives hyperfleet_objects{kind,namespace,ready,reason}, and for named kinds
// hyperfleet_object_ready{kind,namespace,name}.
type Collector struct {
	reader  client.Reader
	elected <-chan struct{}
	kinds   []Kind
	reasons map[string]*metrics.Bounded

	count, object *prometheus.Desc
}

// New makes the collector on top of a cache. It gives nothing before elected is closed.
func New(reader client.Reader, elected <-chan struct{}, kinds ...Kind) *Collector {
	out := &Collector{
		reader: reader, elected: elected, kinds: kinds, reasons: map[string]*metrics.Bounded{},
		count: prometheus.NewDesc("hyperfleet_objects",
			"Objects of a kind by their condition Ready (True, False, Unknown) and its reason.",
			[]string{"kind", "namespace", "ready", "reason"}, nil),
		object: prometheus.NewDesc("hyperfleet_object_ready",
			"1 where the object's condition Ready is True, else 0. At most 500 objects of a kind have it.",
			[]string{"kind", "namespace", "name"}, nil),
	}
	for _, kind := range kinds {
		out.reasons[kind.Name] = metrics.NewBounded(maxReasons)
	}

	return out
}

// Describe gives the metrics' names.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.count
	ch <- c.object
}

// Collect reads the cache. A kind that can't be read is missing, and the others are not.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	select {
	case <-c.elected:
	default:
		return
	}

	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()

	for _, kind := range c.kinds {
		// A kind that is not installed has no objects.
		if err := c.kind(ctx, ch, kind); err != nil && !meta.IsNoMatchError(err) {
			ch <- prometheus.NewInvalidMetric(c.count, err)
		}
	}
}

// kind tells the readiness of one kind.
func (c *Collector) kind(ctx context.Context, ch chan<- prometheus.Metric, kind Kind) error {
	list := kind.List()
	if err := c.reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list %s: %w", kind.Name, err)
	}

	items, err := meta.ExtractList(list)
	if err != nil {
		return fmt.Errorf("read list of %s: %w", kind.Name, err)
	}

	type group struct{ namespace, ready, reason string }

	count := map[group]int{}

	for i, item := range items {
		obj, ok := item.(step.Object)
		if !ok {
			return fmt.Errorf("read list of %s: %T has no conditions", kind.Name, item)
		}

		status, reason := metav1.ConditionUnknown, "NotSeen"
		if condition := meta.FindStatusCondition(*obj.StatusConditions(), step.Ready); condition != nil {
			status, reason = condition.Status, condition.Reason
		}

		count[group{obj.GetNamespace(), string(status), c.reasons[kind.Name].Value(reason)}]++

		if kind.Named && i < maxNamed {
			value := 0.0
			if status == metav1.ConditionTrue {
				value = 1
			}

			ch <- prometheus.MustNewConstMetric(c.object, prometheus.GaugeValue, value, kind.Name, obj.GetNamespace(), obj.GetName())
		}
	}

	for at, n := range count {
		ch <- prometheus.MustNewConstMetric(c.count, prometheus.GaugeValue, float64(n), kind.Name, at.namespace, at.ready, at.reason)
	}

	return nil
}
