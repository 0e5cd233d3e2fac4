// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite_test

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/workload/buildkite"
)

// TestAnswerThatGrowsIsRefused: 306 kB of gzip are 300 MB of JSON.
func TestAnswerThatGrowsIsRefused(t *testing.T) {
	const maxGrowth = 128 << 20

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Encoding", "gzip")

		out := gzip.NewWriter(w)
		_, _ = io.WriteString(out, "{\"message\":\"")

		piece := strings.Repeat("x", 1<<20)
		for range 300 {
			if _, err := io.WriteString(out, piece); err != nil {
				return
			}
		}

		_, _ = io.WriteString(out, "\"}")
		_ = out.Close()
	}))
	t.Cleanup(server.Close)

	p, err := buildkite.New(buildkite.Config{Endpoint: server.URL, Token: "a-secret-token", Organization: "acme", Queue: "q", Stack: "s"})
	if err != nil {
		t.Fatal(err)
	}

	var before, after runtime.MemStats

	runtime.ReadMemStats(&before)

	err = p.Validate(t.Context())

	runtime.ReadMemStats(&after)

	if err == nil || !strings.Contains(err.Error(), "more than 8388608 bytes") {
		t.Errorf("Validate() = %.300v, want an error of the limit", err)
	}

	// All that was allocated, by tries that were repeated too.
	if grown := after.TotalAlloc - before.TotalAlloc; grown > maxGrowth {
		t.Errorf("%d bytes were allocated, at most %d", grown, maxGrowth)
	}
}

// TestPlainHTTPIsRefused: credentials leave the machine encrypted, or not at all.
func TestPlainHTTPIsRefused(t *testing.T) {
	t.Parallel()

	for address, want := range map[string]bool{
		"http://ci.example.com": false, "http://10.0.0.1:8080": false, "http://127.0.0.1.example.com": false,
		"http://127.0.0.1:8080": true, "http://localhost:8080": true, "https://ci.example.com": true,
	} {
		_, err := buildkite.New(buildkite.Config{Endpoint: address, Token: "a-secret-token", Organization: "acme", Queue: "q", Stack: "s"})
		if ok := err == nil; ok != want || !ok && !strings.Contains(err.Error(), "use https") {
			t.Errorf("New() with %s = %v, want it taken: %v", address, err, want)
		}
	}
}
