// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/kit/metrics"
)

func TestBounded(t *testing.T) {
	t.Parallel()

	bounded := metrics.NewLabelLimiter(2)

	var got []string
	for _, value := range []string{"a", "b", "c", "a", "d", "b"} {
		got = append(got, bounded.Limit(value))
	}

	if diff := cmp.Diff([]string{"a", "b", "other", "a", "other", "b"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestBoundedUnderRace(t *testing.T) {
	t.Parallel()

	bounded := metrics.NewLabelLimiter(10)
	distinct := sync.Map{}

	var group sync.WaitGroup
	for i := range 100 {
		group.Go(func() { distinct.Store(bounded.Limit(strconv.Itoa(i)), true) })
	}

	group.Wait()

	count := 0

	distinct.Range(func(any, any) bool {
		count++

		return true
	})

	if count != 11 {
		t.Errorf("%d values, want 10 and other", count)
	}
}

// readCounts returns the labels of each series with its count.
func readCounts(t *testing.T, registry *prometheus.Registry) map[string]uint64 {
	t.Helper()

	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}

	out := map[string]uint64{}

	for _, family := range families {
		for _, metric := range family.GetMetric() {
			var labels []string
			for _, label := range metric.GetLabel() {
				labels = append(labels, label.GetValue())
			}

			out[family.GetName()+" "+strings.Join(labels, " ")] = metric.GetHistogram().GetSampleCount()
		}
	}

	return out
}

func newCalls(t *testing.T) (*metrics.CallMetrics, *prometheus.Registry) {
	t.Helper()

	registry := prometheus.NewRegistry()

	calls, err := metrics.NewCallMetrics(registry, nil)
	if err != nil {
		t.Fatal(err)
	}

	return calls, registry
}

func TestCallsAreCountedByResult(t *testing.T) {
	t.Parallel()

	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			<-release
		}

		code, _ := strconv.Atoi(r.URL.Query().Get("code"))
		w.WriteHeader(max(code, 200))
	}))

	t.Cleanup(server.Close)
	t.Cleanup(func() { close(release) })

	calls, registry := newCalls(t)
	client := &http.Client{Transport: calls.WrapTransport("proxmox", func(r *http.Request) string {
		return strings.Trim(r.URL.Path, "/")
	}, nil)}

	get := func(ctx context.Context, url string) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}

		if response, err := client.Do(request); err == nil {
			_ = response.Body.Close()
		}
	}

	for _, url := range []string{"/clone", "/clone", "/clone?code=404", "/start?code=503"} {
		get(t.Context(), server.URL+url)
	}

	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()

	get(short, server.URL+"/hang")

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	get(ended, server.URL+"/list")
	get(t.Context(), "http://127.0.0.1:1/dead")

	calls.Observe("dns", "update", time.Second, nil)
	calls.Observe("dns", "update", time.Second, errors.ErrUnsupported)

	// The labels are sorted by name: code, operation, system.
	const name = "hyperfleet_external_call_duration_seconds "

	want := map[string]uint64{
		name + "2xx clone proxmox": 2, name + "4xx clone proxmox": 1, name + "5xx start proxmox": 1,
		name + "timeout hang proxmox": 1, name + "canceled list proxmox": 1, name + "error dead proxmox": 1,
		name + "ok update dns": 1, name + "error update dns": 1,
	}
	if diff := cmp.Diff(want, readCounts(t, registry)); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}

	client.CloseIdleConnections()
}

func TestOperationsAreBounded(t *testing.T) {
	t.Parallel()

	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)

	calls, registry := newCalls(t)
	client := &http.Client{Transport: calls.WrapTransport("x", func(r *http.Request) string { return r.URL.Path }, nil)}
	plain := &http.Client{Transport: calls.WrapTransport("plain", nil, http.DefaultTransport)}

	for i := range 80 {
		for _, c := range []*http.Client{client, plain} {
			response, err := c.Get(fmt.Sprintf("%s/%d", server.URL, i))
			if err != nil {
				t.Fatal(err)
			}

			_ = response.Body.Close()
		}
	}

	got := readCounts(t, registry)
	if len(got) != 66 || got["hyperfleet_external_call_duration_seconds 4xx other x"] != 16 ||
		got["hyperfleet_external_call_duration_seconds 4xx GET plain"] != 80 {
		t.Errorf("%d series: %v", len(got), got)
	}
}

func TestRegisteringTwiceIsAnError(t *testing.T) {
	t.Parallel()

	_, registry := newCalls(t)
	if _, err := metrics.NewCallMetrics(registry, nil); err == nil {
		t.Error("no error")
	}
}
