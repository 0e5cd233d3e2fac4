// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

const (
	subsystem = "api"
	// pendingMaxAge is how long counts from the database are reused for further scrapes.
	pendingMaxAge  = 5 * time.Second
	pendingTimeout = 5 * time.Second
)

type serverMetrics struct {
	requests *prometheus.HistogramVec
	count    *prometheus.CounterVec
	inFlight prometheus.Gauge
	pending  *pendingCollector
	// starts counts the same under the name of upstream's document 001, and under that of upstream's program.
	starts []*prometheus.CounterVec
}

func (s *Server) newMetrics(registerer prometheus.Registerer) (*serverMetrics, error) {
	labels := []string{"resource_type", "is_delete"}
	set := metrics.NewSet(subsystem, nil)
	m := &serverMetrics{
		requests: set.NewHistogramVec("request_duration_seconds", "Duration of requests, by path, method and status, in seconds.",
			metrics.CallBuckets(), "path", "method", "code"),
		count:    set.NewCounterVec("requests_total", "Finished requests, by path, method and status.", "path", "method", "code"),
		inFlight: set.NewGauge("requests_in_flight", "Running requests, including those that wait for changes."),
		starts: []*prometheus.CounterVec{
			set.NewCounterVec("reconciliation_requests_total", "How often Reconciled became False.", labels...),
			set.NewCounterVec("reconciliation_started_total", "The same as reconciliation_requests_total.", labels...),
		},
	}

	gauge := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(metrics.Namespace, subsystem, name), help, labels, nil)
	}
	m.pending = metrics.Add(set, &pendingCollector{
		server:  s,
		pending: gauge("resource_pending_reconciliation", "Resources that are not reconciled."),
		stuck: gauge("resource_pending_reconciliation_stuck",
			"Resources that have not been reconciled for longer than the threshold."),
		longest: gauge("resource_pending_reconciliation_stuck_duration_seconds",
			"Time for which the resource that is stuck for longest has not been reconciled, in seconds."),
	})

	return m, set.Register(registerer)
}

// observeRequest records a request. If the request has no route, its path is "none", because
// clients choose the paths.
func (m *serverMetrics) observeRequest(path, method string, status int, took time.Duration) {
	if path == "" {
		path, method = "none", "none"
	}

	m.requests.WithLabelValues(path, method, strconv.Itoa(status)).Observe(took.Seconds())
	m.count.WithLabelValues(path, method, strconv.Itoa(status)).Inc()
}

func (m *serverMetrics) countStarted(kind string, isDelete bool) {
	for _, counter := range m.starts {
		counter.WithLabelValues(strings.ToLower(kind), strconv.FormatBool(isDelete)).Inc()
	}
}

// pendingCollector counts resources in the database when it is scraped, and caches the counts.
type pendingCollector struct {
	server                  *Server
	pending, stuck, longest *prometheus.Desc

	mu       sync.Mutex
	readTime time.Time
	counts   []store.Pending
}

// Describe implements prometheus.Collector.
func (c *pendingCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.pending

	out <- c.stuck

	out <- c.longest
}

// Collect implements prometheus.Collector. If the database is unavailable, it returns no values
// instead of old ones.
func (c *pendingCollector) Collect(out chan<- prometheus.Metric) {
	found, err := c.count()
	if err != nil {
		// It is no error, because the other metrics are needed most when the database is unavailable.
		c.server.log.Error("could not count the resources that are not reconciled", slog.Any("error", err))

		return
	}

	type key struct {
		kind     string
		isDelete bool
	}

	values := map[key]store.Pending{}

	for _, kind := range c.server.registry.Kinds() {
		values[key{kind.Kind, false}], values[key{kind.Kind, true}] = store.Pending{}, store.Pending{}
	}

	for _, counts := range found {
		values[key{counts.Kind, counts.Deleting}] = counts
	}

	for labels, counts := range values {
		kind, isDelete := strings.ToLower(labels.kind), strconv.FormatBool(labels.isDelete)
		out <- prometheus.MustNewConstMetric(c.pending, prometheus.GaugeValue, float64(counts.Count), kind, isDelete)

		out <- prometheus.MustNewConstMetric(c.stuck, prometheus.GaugeValue, float64(counts.Stuck), kind, isDelete)

		out <- prometheus.MustNewConstMetric(c.longest, prometheus.GaugeValue, counts.LongestSeconds, kind, isDelete)
	}
}

func (c *pendingCollector) count() ([]store.Pending, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	now := c.server.now()
	if !c.readTime.IsZero() && now.Sub(c.readTime) < pendingMaxAge {
		return c.counts, nil
	}

	ctx, cancel := context.WithTimeout(context.Background(), pendingTimeout)
	defer cancel()

	found, err := c.server.store.Pending(ctx, now, c.server.options.StuckAfter)
	if err != nil {
		return nil, err
	}

	c.readTime, c.counts = now, found

	return found, nil
}
