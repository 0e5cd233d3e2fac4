// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics takes how long steps ran. A nil *Metrics takes nothing.
type Metrics struct {
	duration *prometheus.HistogramVec
}

// NewMetrics registers hyperfleet_step_duration_seconds, with the labels
// controller, step, outcome (done, wait, stall, fail) and class (none, or the
// error's class). All values come from program text, so their number is bounded. Areas of
// one process share the metric: the first registers it.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "hyperfleet",
		Subsystem: "step",
		Name:      "duration_seconds",
		Help:      "How long one step of a reconcile ran, in seconds.",
		Buckets:   []float64{.001, .005, .025, .1, .25, 1, 2.5, 10, 30},
	}, []string{"controller", "step", "outcome", "class"})}

	err := registerer.Register(m.duration)

	var there prometheus.AlreadyRegisteredError
	if errors.As(err, &there) {
		if duration, ok := there.ExistingCollector.(*prometheus.HistogramVec); ok {
			return &Metrics{duration: duration}, nil
		}
	}

	if err != nil {
		return nil, fmt.Errorf("register step metrics: %w", err)
	}

	return m, nil
}

func (m *Metrics) observe(controller, step, outcome, class string, took time.Duration) {
	if m == nil {
		return
	}

	m.duration.WithLabelValues(controller, step, outcome, class).Observe(took.Seconds())
}
