// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// The names of calls are few, whatever the names and numbers in their paths.
func TestOperationsHaveNoNamesInThem(t *testing.T) {
	t.Parallel()

	for path, want := range map[string]string{
		"/repos/octo-org/octo-repo/actions/runners/17":             "GET /repos/{owner}/{repo}/actions/runners/{}",
		"/orgs/octo-org/actions/runners/generate-jitconfig":        "GET /orgs/{}/actions/runners/generate-jitconfig",
		"/actions/runner-registration":                             "GET /actions/runner-registration",
		"/tenant/_apis/runtime/runnerscalesets":                    "GET /_apis/runtime/runnerscalesets",
		"/tenant/_apis/runtime/runnerscalesets/4/acquirejobs":      "GET /_apis/runtime/runnerscalesets/{}/acquirejobs",
		"/_services/a/_apis/runtime/runnerscalesets/4/sessions/ab": "GET /_apis/runtime/runnerscalesets/{}/sessions/{}",
		"/scalesets/message":                                       "GET /scalesets/message",
		"/scalesets/message/100000170":                             "GET /scalesets/message/{}",
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://example.com"+path, http.NoBody)
		if got := operation(r); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}

	for path, want := range map[string]string{
		"/v3/stacks/hyperfleet-acme-default/scheduled-jobs":         "GET /v3/stacks/{}/scheduled-jobs",
		"/v3/stacks/x/jobs/2f1c8a54-0000-4000-8000-00000000/finish": "GET /v3/stacks/{}/jobs/{}/finish",
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://example.com"+path, http.NoBody)
		if got := plainOperation(r); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
}
