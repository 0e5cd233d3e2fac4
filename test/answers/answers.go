// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package answers

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/workload"
)

// Client is the client of a CI platform.
type Client interface {
	// Validate calls the platform to check whether it accepts the credentials.
	Validate(ctx context.Context) error
}

// ClientFunc creates a client of the server at an address.
type ClientFunc func(address string) (Client, error)

// CheckResponseLimit checks that a client rejects a response of 306 kB of gzip that decompresses to 300 MB
// of JSON, and that it allocates at most 128 MiB.
func CheckResponseLimit(t *testing.T, newClient ClientFunc) {
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

	p, err := newClient(server.URL)
	if err != nil {
		t.Fatal(err)
	}

	var before, after runtime.MemStats

	runtime.ReadMemStats(&before)

	err = p.Validate(t.Context())

	runtime.ReadMemStats(&after)

	if err == nil || !strings.Contains(err.Error(), "more than 8388608 bytes") {
		t.Errorf("Validate() = %.300v, want an error about the limit", err)
	}

	// TotalAlloc includes the allocations of repeated attempts.
	if growth := after.TotalAlloc - before.TotalAlloc; growth > maxGrowth {
		t.Errorf("Validate() allocated %d bytes, want at most %d", growth, maxGrowth)
	}
}

// CheckEncryption checks that a client accepts https and plain http on loopback only, so that it sends
// credentials unencrypted to no other host.
func CheckEncryption(t *testing.T, newClient ClientFunc) {
	t.Helper()

	for address, want := range map[string]bool{
		"http://ci.example.com": false, "http://10.0.0.1:8080": false, "http://127.0.0.1.example.com": false,
		"http://127.0.0.1:8080": true, "http://localhost:8080": true, "https://ci.example.com": true,
	} {
		_, err := newClient(address)
		if ok := err == nil; ok != want || !ok && !strings.Contains(err.Error(), "use https") {
			t.Errorf("New() with %s = %v, want it accepted: %v", address, err, want)
		}
	}
}

// CheckErrorAnswers checks that a client does not take a response with status 200 and an error in it for an empty
// list: no runner is missing, no job is deleted, and no poll has succeeded. The client is a workload.Provider.
func CheckErrorAnswers(t *testing.T, newClient ClientFunc, runner, job string) {
	t.Helper()

	for _, body := range []string{`{"message":"Server Error"}`, `{"data":null,"errors":[{"message":"a timeout"}]}`, `null`} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, body)
		}))
		t.Cleanup(server.Close)

		client, err := newClient(server.URL)
		if err != nil {
			t.Fatal(err)
		}

		p, ok := client.(workload.Provider)
		if !ok {
			t.Fatalf("%T is not a provider", client)
		}

		if found, err := p.FindRunner(t.Context(), runner, 0); err == nil || workload.Is(err, workload.NotFound) {
			t.Errorf("response %s: FindRunner returns %+v, %v", body, found, err)
		}

		_, err = p.GetJob(t.Context(), "a/b", job)
		if known, ok := errors.AsType[*workload.Error](err); ok && known.Reason == workload.ReasonJobDeleted {
			t.Errorf("response %s: GetJob says that the job is deleted", body)
		}

		// The other calls may fail in any way.
		_ = p.Validate(t.Context())
		_, _ = p.IssueCredential(t.Context(), workload.RunnerRequest{Name: "one", Labels: []string{"linux"}})
		_ = p.Deregister(t.Context(), runner)

		if poller, ok := client.(workload.Poller); ok {
			if jobs, err := poller.ListJobs(t.Context(), []string{"a/b", "acme/b"}); err == nil {
				t.Errorf("response %s: ListJobs returns %+v", body, jobs)
			}
		}
	}
}
