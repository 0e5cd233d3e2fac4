// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/platform/server"
	"github.com/hyperfleet/hyperfleet/platform/store"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/scrape"
)

// Most reports repeat the previous one. In this case only the time is written. Readers see the new
// time, but the change feed has no change.
func TestRepeatedReportWritesOnlyTheTime(t *testing.T) {
	t.Parallel()

	registry := prometheus.NewRegistry()

	calls, err := metrics.NewCallMetrics(registry, nil)
	must.Do(t, err)

	counted, err := store.Open(t.Context(), store.Options{URL: database.NewDatabase(t), Timeout: time.Minute, Calls: calls})
	must.Do(t, err)

	t.Cleanup(counted.Close)

	a := serve(t, func(options *server.Options) { options.Store = counted })
	cluster := a.create("/clusters", "home", nil)

	say := func(available string) {
		t.Helper()
		a.report(cluster.Id, "dns", 1, available)
		a.report(cluster.Id, "namespace", 1, "True")
	}
	say("True")

	writes := []string{"SetConditions", "RecordChange"}
	before := map[string]float64{}

	for _, name := range writes {
		before[name] = countQueries(t, registry, name)
	}

	a.clock.Step(time.Minute)
	say("True")

	for _, name := range writes {
		if made := countQueries(t, registry, name) - before[name]; made != 0 {
			t.Errorf("two repeated reports made %v queries %s", made, name)
		}
	}

	if got := findCondition(a.get(cluster), "Reconciled"); got.Status != "True" || !got.LastUpdatedTime.Equal(a.clock.Now()) {
		t.Errorf("Reconciled is %+v, want the time of the second reports, %s", got, a.clock.Now())
	}

	a.clock.Step(time.Minute)
	say("False")

	for _, name := range writes {
		if countQueries(t, registry, name) == before[name] {
			t.Errorf("a report with a change made no query %s", name)
		}
	}

	if got := findCondition(a.get(cluster), "Reconciled"); got.Status != "False" || !got.LastTransitionTime.Equal(a.clock.Now()) {
		t.Errorf("Reconciled is %+v", got)
	}
}

// countQueries returns how often each query was made.
func countQueries(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()

	return scrape.SumOf(t, registry, "hyperfleet_external_call_duration_seconds_count", `operation="`+name+`"`)
}
