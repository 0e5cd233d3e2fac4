// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/hyperfleet/hyperfleet/workload/github"
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
		if got := github.Operation(r); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
}
