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
	// maxKinds is the maximum number of kinds in labels.
	maxKinds = 64
	// maxPending is the maximum number of pending deletions that are timed.
	maxPending = 10_000
)

// pending is a deletion that is not done, with the kind of the object and the start time.
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
	requeues   *prometheus.CounterVec
	errors     *prometheus.CounterVec
	deleted    *prometheus.CounterVec
	deletion   *prometheus.HistogramVec
	inProgress *prometheus.GaugeVec

	clock clock.PassiveClock
	kinds *metrics.LabelLimiter

	mu sync.Mutex
	// pending are the requested deletions that are not done, by resource and entry.
	pending map[string]pending
	// entryKinds are the kinds of the objects of the task file's entries, as far as they are known.
	entryKinds map[string]string
}

func newMeters(
	registry prometheus.Registerer, timer clock.PassiveClock, identity adapter.Identity, version string,
) (*meters, error) {
	buckets := []float64{.1, .5, 1, 2, 5, 10, 30, 60, 120}
	// Upstream's dashboards select an adapter by this label.
	set := metrics.NewSet("adapter", prometheus.Labels{"adapter_name": identity.Name})
	m := &meters{
		up:     set.NewGauge("up", "1 while the adapter handles events."),
		build:  set.NewGaugeVec("build_info", "Versions of the program and the task file.", "version", "framework_version"),
		events: set.NewCounterVec("events_processed_total", "Events by result: success, failed, skipped.", "status"),
		duration: set.NewHistogramVec("event_processing_duration_seconds", "Duration of events, in seconds.", buckets).
			WithLabelValues(),
		requeues: set.NewCounterVec("looks_total",
			"Events handled again because an object had changed, by result: success, failed, skipped.", "status"),
		errors: set.NewCounterVec("errors_total", "Failed events, by the phase that failed.", "error_type"),
		deleted: set.NewCounterVec("resources_deleted_total",
			"Deletions by kind of object: success (deleted), pending (requested, not done), error.", "resource_type", "status"),
		deletion: set.NewHistogramVec("resource_deletion_duration_seconds",
			"Duration of deletions, from the first event that requested the deletion, in seconds.", buckets, "resource_type"),
		inProgress: set.NewGaugeVec("resource_deletions_in_progress",
			"Deletions that were requested and are not done.", "resource_type"),
		clock: timer, kinds: metrics.NewLabelLimiter(maxKinds), pending: map[string]pending{}, entryKinds: map[string]string{},
	}

	if err := set.Register(registry); err != nil {
		return nil, err
	}

	m.build.WithLabelValues(identity.Version, version).Set(1)

	for _, status := range []pipeline.Status{pipeline.Success, pipeline.Failed, pipeline.Skipped} {
		m.events.WithLabelValues(string(status))
		m.requeues.WithLabelValues(string(status))
	}

	for _, phase := range []pipeline.Phase{
		pipeline.PhaseEvent, pipeline.PhaseParams, pipeline.PhasePreconditions, pipeline.PhaseResources,
		pipeline.PhasePost, pipeline.PhaseReport,
	} {
		m.errors.WithLabelValues(string(phase))
	}

	return m, nil
}

func (m *meters) observeEvent(result *pipeline.Result, duration time.Duration) {
	m.events.WithLabelValues(string(result.Status)).Inc()
	m.duration.Observe(duration.Seconds())

	if result.Status == pipeline.Failed {
		m.errors.WithLabelValues(string(result.Phase)).Inc()
	}

	m.observeOutcomes(result)
}

// observeRequeue counts an event that was handled again.
func (m *meters) observeRequeue(result *pipeline.Result) {
	m.requeues.WithLabelValues(string(result.Status)).Inc()
	m.observeOutcomes(result)
}

func (m *meters) observeOutcomes(result *pipeline.Result) {
	for i := range result.Resources.Outcomes {
		m.observeDeletion(result.Trace.Event.ResourceID, &result.Resources.Outcomes[i])
	}
}

// observeDeletion counts and times the deletion of an entry's objects. A pending deletion ends in a
// later event of the resource.
func (m *meters) observeDeletion(resourceID string, outcome *resources.Outcome) {
	key := resourceID + "/" + outcome.Resource
	isDelete := outcome.Operation == resources.Deleted

	m.mu.Lock()
	defer m.mu.Unlock()

	kind := m.kindOf(outcome)

	deletion, isPending := m.pending[key]

	switch {
	case isDelete && outcome.Err != nil:
		m.deleted.WithLabelValues(kind, "error").Inc()
	case outcome.Pending:
		if isDelete && !isPending && len(m.pending) < maxPending {
			m.pending[key] = pending{kind: kind, since: m.clock.Now()}
			m.inProgress.WithLabelValues(kind).Inc()
			m.deleted.WithLabelValues(kind, "pending").Inc()
		}
	case isDelete || isPending && outcome.Err == nil:
		m.observeDeleted(key, kind, deletion, isPending)
	}
}

// kindOf returns the kind of an entry's objects. If the outcome names no object, kindOf returns the
// kind of an earlier outcome of the entry, or "unknown".
func (m *meters) kindOf(outcome *resources.Outcome) string {
	kind, _, _ := strings.Cut(outcome.Object, " ")
	if kind == "" {
		if entryKind, ok := m.entryKinds[outcome.Resource]; ok {
			return entryKind
		}

		return "unknown"
	}

	m.entryKinds[outcome.Resource] = m.kinds.Limit(kind)

	return m.entryKinds[outcome.Resource]
}

// observeDeleted counts a deletion that is done. Its duration is 0 if the deletion was not pending.
func (m *meters) observeDeleted(key, kind string, deletion pending, wasPending bool) {
	var duration time.Duration

	if wasPending {
		duration = m.clock.Since(deletion.since)
		m.inProgress.WithLabelValues(deletion.kind).Dec()
		delete(m.pending, key)
	}

	m.deletion.WithLabelValues(kind).Observe(duration.Seconds())
	m.deleted.WithLabelValues(kind, "success").Inc()
}
