// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/platform/adapter/pipeline"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
)

const (
	// maxKinds of objects are told apart in labels.
	maxKinds = 64
	// maxPending deletions are timed at once.
	maxPending = 10_000
)

// pending is a deletion that is not done: of what kind of object, and since when.
type pending struct {
	kind  string
	since time.Time
}

// meters are the adapter's metrics.
type meters struct {
	up         prometheus.Gauge
	build      *prometheus.GaugeVec
	events     *prometheus.CounterVec
	duration   prometheus.Observer
	looks      *prometheus.CounterVec
	errors     *prometheus.CounterVec
	deleted    *prometheus.CounterVec
	deletion   *prometheus.HistogramVec
	inProgress *prometheus.GaugeVec

	clock clock.PassiveClock
	kinds *metrics.Bounded

	mu sync.Mutex
	// pending are the deletions that were asked for and are not done, by resource and
	// entry, with when they were first seen.
	pending map[string]pending
	// byEntry are the kinds of the task file's entries, as far as they were seen.
	byEntry map[string]string
}

func newMeters(
	registry prometheus.Registerer, timer clock.PassiveClock, identity adapter.Identity, version string,
) (*meters, error) {
	buckets := []float64{.1, .5, 1, 2, 5, 10, 30, 60, 120}
	// Upstream's dashboards choose an adapter by this label.
	set := metrics.NewSet("adapter", prometheus.Labels{"adapter_name": identity.Name})
	m := &meters{
		up:       set.Gauge("up", "1 while the adapter takes events."),
		build:    set.Gauges("build_info", "Versions of program and task file.", "version", "framework_version"),
		events:   set.Counters("events_processed_total", "Events by how they ended: success, failed, skipped.", "status"),
		duration: set.Histograms("event_processing_duration_seconds", "How long events took, in seconds.", buckets).WithLabelValues(),
		looks: set.Counters("looks_total",
			"Events handled again because an object had changed, by how they ended: success, failed, skipped.", "status"),
		errors: set.Counters("errors_total", "Events that failed, by the phase that failed.", "error_type"),
		deleted: set.Counters("resources_deleted_total",
			"Deletions by kind of object: success (it is gone), pending (asked for, not done), error.", "resource_type", "status"),
		deletion: set.Histograms("resource_deletion_duration_seconds",
			"How long objects took to go, from the first event that asked for it, in seconds.", buckets, "resource_type"),
		inProgress: set.Gauges("resource_deletions_in_progress",
			"Deletions that were asked for and are not done.", "resource_type"),
		clock: timer, kinds: metrics.NewBounded(maxKinds), pending: map[string]pending{}, byEntry: map[string]string{},
	}

	if err := set.Register(registry); err != nil {
		return nil, err
	}

	m.build.WithLabelValues(identity.Version, version).Set(1)

	for _, status := range []pipeline.Status{pipeline.Success, pipeline.Failed, pipeline.Skipped} {
		m.events.WithLabelValues(string(status))
		m.looks.WithLabelValues(string(status))
	}

	for _, phase := range []pipeline.Phase{
		pipeline.PhaseEvent, pipeline.PhaseParams, pipeline.PhasePreconditions, pipeline.PhaseResources,
		pipeline.PhasePost, pipeline.PhaseReport,
	} {
		m.errors.WithLabelValues(string(phase))
	}

	return m, nil
}

func (m *meters) observe(result *pipeline.Result, took time.Duration) {
	m.events.WithLabelValues(string(result.Status)).Inc()
	m.duration.Observe(took.Seconds())

	if result.Status == pipeline.Failed {
		m.errors.WithLabelValues(string(result.Phase)).Inc()
	}

	m.outcomes(result)
}

// look counts an event that was handled again.
func (m *meters) look(result *pipeline.Result) {
	m.looks.WithLabelValues(string(result.Status)).Inc()
	m.outcomes(result)
}

func (m *meters) outcomes(result *pipeline.Result) {
	for i := range result.Resources.Outcomes {
		m.deletions(result.Trace.Event.ResourceID, &result.Resources.Outcomes[i])
	}
}

// deletions counts and times what was deleted. A deletion that takes its time is seen in
// the events that follow.
func (m *meters) deletions(resourceID string, outcome *resources.Outcome) {
	key := resourceID + "/" + outcome.Resource
	ours := outcome.Operation == resources.Deleted

	m.mu.Lock()
	defer m.mu.Unlock()

	kind := m.kindOf(outcome)

	before, waiting := m.pending[key]

	switch {
	case ours && outcome.Err != nil:
		m.deleted.WithLabelValues(kind, "error").Inc()
	case outcome.Pending:
		if ours && !waiting && len(m.pending) < maxPending {
			m.pending[key] = pending{kind: kind, since: m.clock.Now()}
			m.inProgress.WithLabelValues(kind).Inc()
			m.deleted.WithLabelValues(kind, "pending").Inc()
		}
	case ours || waiting && outcome.Err == nil:
		m.gone(key, kind, before, waiting)
	}
}

// kindOf is the kind of an entry's objects, also when there is none any more.
func (m *meters) kindOf(outcome *resources.Outcome) string {
	kind, _, _ := strings.Cut(outcome.Object, " ")
	if kind == "" {
		if known, ok := m.byEntry[outcome.Resource]; ok {
			return known
		}

		return "unknown"
	}

	m.byEntry[outcome.Resource] = m.kinds.Value(kind)

	return m.byEntry[outcome.Resource]
}

func (m *meters) gone(key, kind string, before pending, waited bool) {
	var took time.Duration

	if waited {
		took = m.clock.Since(before.since)
		m.inProgress.WithLabelValues(before.kind).Dec()
		delete(m.pending, key)
	}

	m.deletion.WithLabelValues(kind).Observe(took.Seconds())
	m.deleted.WithLabelValues(kind, "success").Inc()
}
