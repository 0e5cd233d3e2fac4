// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/kit/metrics"
)

// Types of errors.
const (
	errorConversion = "conversion"
	errorHandler    = "handler"
	errorPanic      = "panic"
	errorPublish    = "publish"
	errorAck        = "ack"
)

// What became of a delivered event.
const (
	resultDone       = "done"
	resultRetry      = "retry"
	resultDeadLetter = "dead_letter"
	// resultFolded: a later event that says the same waits for its turn in its place.
	resultFolded = "folded"
)

// meters are the metrics of a broker.
type meters struct {
	consumed    *prometheus.CounterVec
	published   *prometheus.CounterVec
	errors      *prometheus.CounterVec
	deadLetters *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	held        *prometheus.GaugeVec
}

func newMeters(registerer prometheus.Registerer) (*meters, error) {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: metrics.Namespace, Subsystem: "broker", Name: name, Help: help}
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts(opts(name, help)), labels)
	}
	m := &meters{
		consumed: counter("messages_consumed_total",
			"Deliveries by what became of them: done, retry, dead_letter, or folded into one that says the same.",
			"topic", "subscription", "result"),
		published: counter("messages_published_total", "Events that the broker has for good.", "topic"),
		errors: counter("errors_total",
			"Errors: conversion (not a CloudEvent), handler, panic, publish, ack.", "error_type"),
		deadLetters: counter("dead_letters_total", "Events that went to the dead letters, by reason.",
			"topic", "subscription", "reason"),
		held: prometheus.NewGaugeVec(prometheus.GaugeOpts(opts("messages_held",
			"Events that were delivered and are not done: in work, in line, or waiting for another try.")),
			[]string{"topic", "subscription"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: metrics.Namespace, Subsystem: "broker", Name: "message_duration_seconds",
			Help:    "How long handlers took, in seconds.",
			Buckets: []float64{.1, .5, 1, 2, 5, 10, 30, 60, 120},
		}, []string{"topic", "subscription"}),
	}

	if registerer == nil {
		return m, nil
	}

	for _, collector := range []prometheus.Collector{m.consumed, m.published, m.errors, m.deadLetters, m.duration, m.held} {
		if err := registerer.Register(collector); err != nil {
			return nil, fmt.Errorf("register metrics of the broker: %w", err)
		}
	}

	return m, nil
}
