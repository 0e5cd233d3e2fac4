// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// TestFormerOutcomes checks that each series has the result, and the former label outcome with its former value.
func TestFormerOutcomes(t *testing.T) {
	t.Parallel()

	registry := prometheus.NewRegistry()

	metrics, err := NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}

	for _, result := range []Result{
		Done(), Wait(0, "Pending", ""), WaitReady(0, "Idle", ""), Stall("Invalid", ""), Fail(errors.New("no connection")),
	} {
		metrics.observeStep("controller", "Step", result.outcome, "none", time.Second)
	}

	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}

	got := map[string]string{}

	for _, series := range families[0].GetMetric() {
		labels := map[string]string{}
		for _, label := range series.GetLabel() {
			labels[label.GetName()] = label.GetValue()
		}

		got[labels["result"]] = labels["outcome"]
	}

	want := map[string]string{"done": "done", "waiting": "wait", "ready": "rest", "stalled": "stall", "failed": "fail"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("former outcomes by result (-want +got):\n%s", diff)
	}
}
