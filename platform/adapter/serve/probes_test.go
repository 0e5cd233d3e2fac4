// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package serve_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/platform/probes"
)

func TestProbes(t *testing.T) {
	t.Parallel()

	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "things_total", Help: "Things."}))

	server, err := probes.Listen(t.Context(), probes.Options{
		HealthAddress: "127.0.0.1:0", MetricsAddress: "127.0.0.1:0", Gatherer: registry,
		Ready: func(context.Context) error { return errors.New("the broker is away") },
		Extra: map[string]http.Handler{"GET /config": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "config")
		})},
	})
	if err != nil {
		t.Fatal(err)
	}

	for _, tc := range []struct {
		url    string
		status int
		body   string
	}{
		{server.Health + "/healthz", 200, "ok"},
		{server.Health + "/readyz", 503, "the broker is away"},
		{server.Health + "/config", 200, "config"},
		{server.Health + "/metrics", 404, ""},
		{server.Metrics + "/metrics", 200, "things_total 0"},
	} {
		response, err := http.Get("http://" + tc.url)
		if err != nil {
			t.Fatal(err)
		}

		body, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()

		if response.StatusCode != tc.status || !strings.Contains(string(body), tc.body) {
			t.Errorf("%s: %d %s", tc.url, response.StatusCode, body)
		}
	}

	if _, err := probes.Listen(t.Context(), probes.Options{MetricsAddress: server.Health}); err == nil {
		t.Error("an address was taken twice")
	}

	if err := server.Close(t.Context()); err != nil {
		t.Error(err)
	}

	if off, err := probes.Listen(t.Context(), probes.Options{HealthAddress: "0"}); err != nil || off.Health != "" || off.Close(t.Context()) != nil {
		t.Errorf("without addresses: %v", err)
	}
}
