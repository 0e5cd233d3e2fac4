// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package answers

import (
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
)

// Client is that of a CI platform.
type Client interface {
	// Validate asks the platform whether it takes the credentials.
	Validate(ctx context.Context) error
}

// Open makes a client of the server at an address.
type Open func(address string) (Client, error)

// Bounded asks a server whose 306 kB of gzip are 300 MB of JSON.
func Bounded(t *testing.T, open Open) {
	t.Helper()

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

	p, err := open(server.URL)
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

// Encrypted names servers that may have credentials, and such that may not.
func Encrypted(t *testing.T, open Open) {
	t.Helper()

	for address, want := range map[string]bool{
		"http://ci.example.com": false, "http://10.0.0.1:8080": false, "http://127.0.0.1.example.com": false,
		"http://127.0.0.1:8080": true, "http://localhost:8080": true, "https://ci.example.com": true,
	} {
		_, err := open(address)
		if ok := err == nil; ok != want || !ok && !strings.Contains(err.Error(), "use https") {
			t.Errorf("New() with %s = %v, want it taken: %v", address, err, want)
		}
	}
}
