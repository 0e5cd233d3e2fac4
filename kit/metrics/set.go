// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Set makes the metrics of one part of a program, hyperfleet_SUBSYSTEM_NAME, and registers
// them together.
type Set struct {
	subsystem string
	labels    prometheus.Labels
	all       []prometheus.Collector
}

// NewSet is an empty one. The labels, which may be nil, are on all of its metrics.
func NewSet(subsystem string, labels prometheus.Labels) *Set {
	return &Set{subsystem: subsystem, labels: labels}
}

func (s *Set) opts(name, help string) prometheus.Opts {
	return prometheus.Opts{Namespace: Namespace, Subsystem: s.subsystem, Name: name, Help: help, ConstLabels: s.labels}
}

// Counters count by the labels.
func (s *Set) Counters(name, help string, labels ...string) *prometheus.CounterVec {
	return Added(s, prometheus.NewCounterVec(prometheus.CounterOpts(s.opts(name, help)), labels))
}

// Counter counts one thing.
func (s *Set) Counter(name, help string) prometheus.Counter {
	return Added(s, prometheus.NewCounter(prometheus.CounterOpts(s.opts(name, help))))
}

// Gauges are values by the labels.
func (s *Set) Gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return Added(s, prometheus.NewGaugeVec(prometheus.GaugeOpts(s.opts(name, help)), labels))
}

// Gauge is one value.
func (s *Set) Gauge(name, help string) prometheus.Gauge {
	return Added(s, prometheus.NewGauge(prometheus.GaugeOpts(s.opts(name, help))))
}

// GaugeOf is one value, asked for when somebody looks.
func (s *Set) GaugeOf(name, help string, value func() float64) prometheus.GaugeFunc {
	return Added(s, prometheus.NewGaugeFunc(prometheus.GaugeOpts(s.opts(name, help)), value))
}

// Histograms time, or measure, by the labels; without any there is the one of no values.
func (s *Set) Histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	o := s.opts(name, help)

	return Added(s, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: o.Namespace, Subsystem: o.Subsystem, Name: o.Name, Help: o.Help, ConstLabels: o.ConstLabels, Buckets: buckets,
	}, labels))
}

// Added has a collector that somebody else made be one of the set's.
func Added[T prometheus.Collector](s *Set, one T) T {
	s.all = append(s.all, one)

	return one
}

// Register registers all of them; with nil, nowhere.
func (s *Set) Register(registerer prometheus.Registerer) error {
	if registerer == nil {
		return nil
	}

	var errs []error
	for _, one := range s.all {
		errs = append(errs, registerer.Register(one))
	}

	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("register metrics of %s: %w", s.subsystem, err)
	}

	return nil
}
