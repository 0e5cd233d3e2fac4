// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea_test

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/gitea"
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

	p, err := openAt(server.URL)
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
		_, err := openAt(address)
		if ok := err == nil; ok != want || !ok && !strings.Contains(err.Error(), "use https") {
			t.Errorf("New() with %s = %v, want it taken: %v", address, err, want)
		}
	}
}

func openAt(address string) (workload.Provider, error) {
	template := &v1alpha1.HypervisorMachineTemplate{}
	template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{Gitea: &v1alpha1.GiteaBootstrap{}}

	runner, err := gitea.Gitea().Runner(template, v1alpha1.Workload{Config: &v1alpha1.WorkloadConfig{
		Gitea: &v1alpha1.GiteaConfig{URL: address, Repository: "a/b"},
	}})
	if err != nil {
		return nil, err
	}

	return gitea.Gitea().Open(workload.Config{Runner: runner, Template: template, Secrets: map[string]string{"token": "a-secret-token"}})
}
