// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
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

// meters are the metrics of all brokers of a process.
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

	err := errors.Join(register(registerer, &m.consumed), register(registerer, &m.published),
		register(registerer, &m.errors), register(registerer, &m.deadLetters),
		register(registerer, &m.duration), register(registerer, &m.held))
	if err != nil {
		return nil, fmt.Errorf("register metrics of the broker: %w", err)
	}

	return m, nil
}

// register registers a collector, or takes the one that another broker of the process
// registered.
func register[C prometheus.Collector](registerer prometheus.Registerer, collector *C) error {
	err := registerer.Register(*collector)
	if there, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if same, ok := there.ExistingCollector.(C); ok {
			*collector = same

			return nil
		}
	}

	return err //nolint:wrapcheck // the caller joins and wraps
}
