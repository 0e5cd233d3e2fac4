// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics observes the duration of steps. A nil *Metrics observes nothing.
type Metrics struct {
	duration *prometheus.HistogramVec
}

// formerOutcomes are the values of the label outcome, which result replaces.
func formerOutcomes() map[string]string {
	return map[string]string{
		outcomeDone: "done", outcomeWait: "wait", outcomeWaitReady: "rest", outcomeStall: "stall", outcomeFail: "fail",
	}
}

// NewMetrics registers hyperfleet_step_duration_seconds with the labels controller, step, result
// (done, waiting, ready for WaitReady, stalled, failed), class (the error's class, or none) and outcome,
// the former name of result. All label values are constants of the program, so their number is bounded.
// If the metric is already registered, NewMetrics returns the registered one, so that the areas of a
// process share it.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "hyperfleet",
		Subsystem: "step",
		Name:      "duration_seconds",
		Help:      "Duration of one step of a reconcile, in seconds.",
		Buckets:   []float64{.001, .005, .025, .1, .25, 1, 2.5, 10, 30},
	}, []string{"controller", "step", "result", "outcome", "class"})}

	err := registerer.Register(m.duration)

	var registered prometheus.AlreadyRegisteredError
	if errors.As(err, &registered) {
		if duration, ok := registered.ExistingCollector.(*prometheus.HistogramVec); ok {
			return &Metrics{duration: duration}, nil
		}
	}

	if err != nil {
		return nil, fmt.Errorf("register step metrics: %w", err)
	}

	return m, nil
}

func (m *Metrics) observeStep(controller, step, result, class string, elapsed time.Duration) {
	if m == nil {
		return
	}

	m.duration.WithLabelValues(controller, step, result, formerOutcomes()[result], class).Observe(elapsed.Seconds())
}
