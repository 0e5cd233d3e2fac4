// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Set creates the metrics of one subsystem, hyperfleet_SUBSYSTEM_NAME, and registers them together.
type Set struct {
	subsystem  string
	labels     prometheus.Labels
	collectors []prometheus.Collector
}

// NewSet returns an empty Set. All metrics of the set have the labels. labels may be nil.
func NewSet(subsystem string, labels prometheus.Labels) *Set {
	return &Set{subsystem: subsystem, labels: labels}
}

func (s *Set) opts(name, help string) prometheus.Opts {
	return prometheus.Opts{Namespace: Namespace, Subsystem: s.subsystem, Name: name, Help: help, ConstLabels: s.labels}
}

// NewCounterVec adds a counter with labels.
func (s *Set) NewCounterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return Add(s, prometheus.NewCounterVec(prometheus.CounterOpts(s.opts(name, help)), labels))
}

// NewCounter adds a counter without labels.
func (s *Set) NewCounter(name, help string) prometheus.Counter {
	return Add(s, prometheus.NewCounter(prometheus.CounterOpts(s.opts(name, help))))
}

// NewGaugeVec adds a gauge with labels.
func (s *Set) NewGaugeVec(name, help string, labels ...string) *prometheus.GaugeVec {
	return Add(s, prometheus.NewGaugeVec(prometheus.GaugeOpts(s.opts(name, help)), labels))
}

// NewGauge adds a gauge without labels.
func (s *Set) NewGauge(name, help string) prometheus.Gauge {
	return Add(s, prometheus.NewGauge(prometheus.GaugeOpts(s.opts(name, help))))
}

// NewGaugeFunc adds a gauge without labels. Each scrape calls value.
func (s *Set) NewGaugeFunc(name, help string, value func() float64) prometheus.GaugeFunc {
	return Add(s, prometheus.NewGaugeFunc(prometheus.GaugeOpts(s.opts(name, help)), value))
}

// NewHistogramVec adds a histogram with labels. Without labels, the only histogram is that of no
// label values.
func (s *Set) NewHistogramVec(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	o := s.opts(name, help)

	return Add(s, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: o.Namespace, Subsystem: o.Subsystem, Name: o.Name, Help: o.Help, ConstLabels: o.ConstLabels, Buckets: buckets,
	}, labels))
}

// Add adds an existing collector to the set and returns it.
func Add[T prometheus.Collector](s *Set, collector T) T {
	s.collectors = append(s.collectors, collector)

	return collector
}

// Register registers all metrics of the set. If registerer is nil, it does nothing.
func (s *Set) Register(registerer prometheus.Registerer) error {
	if registerer == nil {
		return nil
	}

	var errs []error
	for _, collector := range s.collectors {
		errs = append(errs, registerer.Register(collector))
	}

	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("register metrics of %s: %w", s.subsystem, err)
	}

	return nil
}
