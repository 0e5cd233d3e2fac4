// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package scrape_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/hyperfleet/hyperfleet/test/scrape"
)

// TestSum checks sums of series that Prometheus' own library writes.
func TestSum(t *testing.T) {
	t.Parallel()

	registry := prometheus.NewRegistry()
	calls := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "calls_total", Help: "Calls."}, []string{"method", "path"})
	other := prometheus.NewGauge(prometheus.GaugeOpts{Name: "calls_total_waiting", Help: "A metric with the same prefix."})
	took := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "took_seconds", Help: "How long they took."})

	registry.MustRegister(calls, other, took)
	calls.WithLabelValues("GET", "/a b").Add(2)
	calls.WithLabelValues("PUT", "/a b").Add(3)
	other.Set(-7)
	took.Observe(0.25)
	took.Observe(0.5)

	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	defer server.Close()

	for _, one := range []struct {
		name, labels string
		want         float64
	}{
		{"calls_total", "", 5}, {"calls_total", `method="GET"`, 2}, {"calls_total", `method="PUT",path="/a b"`, 3}, {"calls_total_waiting", "", -7},
		{"took_seconds_sum", "", 0.75}, {"took_seconds_count", "", 2},
	} {
		if got, err := scrape.Sum(t.Context(), server.URL, one.name, one.labels); err != nil || got != one.want {
			t.Errorf("Sum(%s{%s}) = %v, %v; want %v", one.name, one.labels, got, err, one.want)
		}
	}

	for _, name := range []string{"calls", "took"} {
		if _, err := scrape.Sum(t.Context(), server.URL, name, ""); !errors.Is(err, scrape.ErrNoSeries) {
			t.Errorf("Sum(%s): error %v, want ErrNoSeries", name, err)
		}
	}

	refuses := httptest.NewServer(http.NotFoundHandler())
	defer refuses.Close()

	if _, err := scrape.Sum(t.Context(), refuses.URL, "calls", ""); err == nil || errors.Is(err, scrape.ErrNoSeries) {
		t.Errorf("Sum of a missing page: error %v, want another error than ErrNoSeries", err)
	}
}
