// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/kit/metrics"
)

// Values of the label error_type.
const (
	errorConversion = "conversion"
	errorHandler    = "handler"
	errorPanic      = "panic"
	errorPublish    = "publish"
	errorAck        = "ack"
)

// Results of delivered events.
const (
	resultDone       = "done"
	resultRetry      = "retry"
	resultDeadLetter = "dead_letter"
	// resultFolded means that an equal event was already waiting, so this event was dropped.
	resultFolded = "folded"
)

// Metrics are the metrics of a broker and its queues.
type Metrics struct {
	consumed    *prometheus.CounterVec
	published   *prometheus.CounterVec
	errors      *prometheus.CounterVec
	deadLetters *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	held        *prometheus.GaugeVec
}

// NewMetrics returns the metrics and registers them. The registerer may be nil.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	set := metrics.NewSet("broker", nil)
	m := &Metrics{
		consumed: set.NewCounterVec("messages_consumed_total",
			"Deliveries by result: done, retry, dead_letter, or folded if an equal event was waiting.",
			"topic", "subscription", "result"),
		published: set.NewCounterVec("messages_published_total", "Events that the broker has stored.", "topic"),
		errors: set.NewCounterVec("errors_total",
			"Errors: conversion (not a CloudEvent), handler, panic, publish, ack.", "error_type"),
		deadLetters: set.NewCounterVec("dead_letters_total", "Events that became dead letters, by reason.",
			"topic", "subscription", "reason"),
		held: set.NewGaugeVec("messages_held",
			"Events that were delivered and are not done: running, waiting for their turn, or waiting for the next attempt.",
			"topic", "subscription"),
		duration: set.NewHistogramVec("message_duration_seconds", "Duration of handler calls, in seconds.",
			[]float64{.1, .5, 1, 2, 5, 10, 30, 60, 120}, "topic", "subscription"),
	}

	return m, set.Register(registerer)
}
