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
	// pendingFresh is how long counts from the database are used for further scrapes.
	pendingFresh   = 5 * time.Second
	pendingTimeout = 5 * time.Second
)

// serverMetrics are the metrics of the API.
type serverMetrics struct {
	requests *prometheus.HistogramVec
	count    *prometheus.CounterVec
	running  prometheus.Gauge
	pending  *pendingCollector
	starts   *prometheus.CounterVec
}

func (s *Server) newMetrics(registerer prometheus.Registerer) (*serverMetrics, error) {
	labels := []string{"resource_type", "is_delete"}
	set := metrics.NewSet(subsystem, nil)
	m := &serverMetrics{
		requests: set.Histograms("request_duration_seconds", "How long requests took, by path, method and status, in seconds.",
			metrics.CallBuckets(), "path", "method", "code"),
		count:   set.Counters("requests_total", "Requests that were answered, by path, method and status.", "path", "method", "code"),
		running: set.Gauge("requests_in_flight", "Requests that are being answered, those that wait for changes included."),
		starts:  set.Counters("reconciliation_started_total", "How often Reconciled became False.", labels...),
	}

	gauge := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(metrics.Namespace, subsystem, name), help, labels, nil)
	}
	m.pending = metrics.Added(set, &pendingCollector{
		server:  s,
		pending: gauge("resource_pending_reconciliation", "Resources that are not reconciled."),
		stuck: gauge("resource_pending_reconciliation_stuck",
			"Resources that have not been reconciled for longer than the threshold."),
		longest: gauge("resource_pending_reconciliation_stuck_duration_seconds",
			"For how long the one that is stuck for longest has not been reconciled, in seconds."),
	})

	return m, set.Register(registerer)
}

// request notes a request. One without a route is one of "none": paths come from outside.
func (m *serverMetrics) request(path, method string, status int, took time.Duration) {
	if path == "" {
		path, method = "none", "none"
	}

	m.requests.WithLabelValues(path, method, strconv.Itoa(status)).Observe(took.Seconds())
	m.count.WithLabelValues(path, method, strconv.Itoa(status)).Inc()
}

func (m *serverMetrics) started(kind string, isDelete bool) {
	m.starts.WithLabelValues(strings.ToLower(kind), strconv.FormatBool(isDelete)).Inc()
}

// pendingCollector counts in the database when it is asked, and not again for a while.
type pendingCollector struct {
	server                  *Server
	pending, stuck, longest *prometheus.Desc

	mu    sync.Mutex
	read  time.Time
	found []store.Pending
}

// Describe names the metrics.
func (c *pendingCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.pending

	out <- c.stuck

	out <- c.longest
}

// Collect counts. Where the database does not answer there are no values, and not old
// ones.
func (c *pendingCollector) Collect(out chan<- prometheus.Metric) {
	found, err := c.count()
	if err != nil {
		// The other metrics are needed most when the database is away.
		c.server.log.Error("the resources that are not reconciled could not be counted", slog.Any("error", err))

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

	for _, one := range found {
		values[key{one.Kind, one.Deleting}] = one
	}

	for at, one := range values {
		kind, isDelete := strings.ToLower(at.kind), strconv.FormatBool(at.isDelete)
		out <- prometheus.MustNewConstMetric(c.pending, prometheus.GaugeValue, float64(one.Count), kind, isDelete)

		out <- prometheus.MustNewConstMetric(c.stuck, prometheus.GaugeValue, float64(one.Stuck), kind, isDelete)

		out <- prometheus.MustNewConstMetric(c.longest, prometheus.GaugeValue, one.LongestSeconds, kind, isDelete)
	}
}

func (c *pendingCollector) count() ([]store.Pending, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	now := c.server.now()
	if !c.read.IsZero() && now.Sub(c.read) < pendingFresh {
		return c.found, nil
	}

	ctx, cancel := context.WithTimeout(context.Background(), pendingTimeout)
	defer cancel()

	found, err := c.server.store.Pending(ctx, now, c.server.options.StuckAfter)
	if err != nil {
		return nil, err
	}

	c.read, c.found = now, found

	return found, nil
}
