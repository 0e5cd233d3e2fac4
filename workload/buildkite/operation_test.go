// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/hyperfleet/hyperfleet/workload/buildkite"
)

// The names of calls are few, whatever the names and numbers in their paths.
func TestOperationsHaveNoNamesInThem(t *testing.T) {
	t.Parallel()

	for path, want := range map[string]string{
		"/v3/stacks/hyperfleet-acme-default/scheduled-jobs":         "GET /v3/stacks/{}/scheduled-jobs",
		"/v3/stacks/x/jobs/2f1c8a54-0000-4000-8000-00000000/finish": "GET /v3/stacks/{}/jobs/{}/finish",
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://example.com"+path, http.NoBody)
		if got := buildkite.Operation(r); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
}
