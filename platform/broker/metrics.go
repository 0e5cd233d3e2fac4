// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
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

// Metrics of a broker and its queues.
type Metrics struct {
	consumed    *prometheus.CounterVec
	published   *prometheus.CounterVec
	errors      *prometheus.CounterVec
	deadLetters *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	held        *prometheus.GaugeVec
}

// NewMetrics registers metrics. The registerer may be nil.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	set := metrics.NewSet("broker", nil)
	m := &Metrics{
		consumed: set.Counters("messages_consumed_total",
			"Deliveries by what became of them: done, retry, dead_letter, or folded into one that says the same.",
			"topic", "subscription", "result"),
		published: set.Counters("messages_published_total", "Events that the broker has for good.", "topic"),
		errors: set.Counters("errors_total",
			"Errors: conversion (not a CloudEvent), handler, panic, publish, ack.", "error_type"),
		deadLetters: set.Counters("dead_letters_total", "Events that went to the dead letters, by reason.",
			"topic", "subscription", "reason"),
		held: set.Gauges("messages_held",
			"Events that were delivered and are not done: in work, in line, or waiting for another try.", "topic", "subscription"),
		duration: set.Histograms("message_duration_seconds", "How long handlers took, in seconds.",
			[]float64{.1, .5, 1, 2, 5, 10, 30, 60, 120}, "topic", "subscription"),
	}

	return m, set.Register(registerer)
}
