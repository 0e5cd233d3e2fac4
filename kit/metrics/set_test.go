// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/hyperfleet/hyperfleet/kit/metrics"
)

// The metrics of a set have its subsystem and labels, and are registered together. Without a registerer,
// none is registered.
func TestSet(t *testing.T) {
	t.Parallel()

	set := metrics.NewSet("part", prometheus.Labels{"of": "x"})
	set.NewCounterVec("done_total", "Done.", "how").WithLabelValues("well").Inc()
	set.NewCounter("all_total", "All.").Add(2)
	set.NewGauge("held", "Held.").Set(3)
	set.NewGaugeVec("open", "Open.", "where").WithLabelValues("here").Set(4)
	set.NewGaugeFunc("waiting", "Waiting.", func() float64 { return 5 })
	set.NewHistogramVec("took_seconds", "Took.", []float64{1}).WithLabelValues().Observe(0.5)

	if err := set.Register(nil); err != nil {
		t.Error(err)
	}

	registry := prometheus.NewRegistry()
	if err := set.Register(registry); err != nil {
		t.Fatal(err)
	}

	want := `
# HELP hyperfleet_part_all_total All.
# TYPE hyperfleet_part_all_total counter
hyperfleet_part_all_total{of="x"} 2
# HELP hyperfleet_part_done_total Done.
# TYPE hyperfleet_part_done_total counter
hyperfleet_part_done_total{how="well",of="x"} 1
# HELP hyperfleet_part_held Held.
# TYPE hyperfleet_part_held gauge
hyperfleet_part_held{of="x"} 3
# HELP hyperfleet_part_open Open.
# TYPE hyperfleet_part_open gauge
hyperfleet_part_open{of="x",where="here"} 4
# HELP hyperfleet_part_took_seconds Took.
# TYPE hyperfleet_part_took_seconds histogram
hyperfleet_part_took_seconds_bucket{of="x",le="1"} 1
hyperfleet_part_took_seconds_bucket{of="x",le="+Inf"} 1
hyperfleet_part_took_seconds_sum{of="x"} 0.5
hyperfleet_part_took_seconds_count{of="x"} 1
# HELP hyperfleet_part_waiting Waiting.
# TYPE hyperfleet_part_waiting gauge
hyperfleet_part_waiting{of="x"} 5
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}

	if err := set.Register(registry); err == nil || !strings.Contains(err.Error(), "part") {
		t.Errorf("registered twice: %v", err)
	}
}
