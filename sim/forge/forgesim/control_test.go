// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package forgesim_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/generic"
)

func TestControlHandler(t *testing.T) {
	t.Parallel()
	sim, err := generic.New(generic.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Close)
	for name, tc := range map[string]struct {
		method, path, body string
		want               int
		wantBody           string
	}{
		"no violations are a list":       {method: "GET", path: "/sim/violations", want: http.StatusOK, wantBody: "[]"},
		"a job":                          {path: "/sim/jobs", body: `{"repo":"demo"}`, want: http.StatusCreated, wantBody: `"status":"queued"`},
		"faults":                         {path: "/sim/faults", body: `{}`, want: http.StatusNoContent},
		"a webhook":                      {path: "/sim/webhook", body: `{"url":""}`, want: http.StatusNoContent},
		"no JSON":                        {path: "/sim/jobs", body: `{`, want: http.StatusBadRequest, wantBody: "decode body"},
		"an unknown field":               {path: "/sim/jobs", body: `{"rain":1}`, want: http.StatusBadRequest, wantBody: "rain"},
		"more than one value":            {path: "/sim/faults", body: `{} {}`, want: http.StatusBadRequest, wantBody: "unexpected data"},
		"too long a body":                {path: "/sim/jobs", body: `{"name":"` + strings.Repeat("x", 5<<20) + `"}`, want: http.StatusBadRequest},
		"a job in an unknown repository": {path: "/sim/jobs", body: `{"repo":"none"}`, want: http.StatusUnprocessableEntity, wantBody: "none"},
		"a workflow":                     {path: "/sim/jobs", body: `{"repo":"demo","workflow":"CI"}`, want: http.StatusUnprocessableEntity},
		"a negative count":               {path: "/sim/jobs", body: `{"repo":"demo","count":-1}`, want: http.StatusUnprocessableEntity},
		"an unsupported fault":           {path: "/sim/faults", body: `{"deleteBusy":0.5}`, want: http.StatusUnprocessableEntity},
		"a probability above 1":          {path: "/sim/faults", body: `{"serverError":2}`, want: http.StatusUnprocessableEntity, wantBody: "serverError"},
		"an invalid secret":              {path: "/sim/webhook", body: `{"secret":"whsec_***"}`, want: http.StatusUnprocessableEntity, wantBody: "base64"},
		"approve an unknown job":         {path: "/sim/jobs/7/approve", want: http.StatusNotFound, wantBody: "7"},
		"cancel with a bad ID":           {path: "/sim/jobs/x/cancel", want: http.StatusNotFound, wantBody: `message`},
		"an unknown path":                {path: "/sim/rain", want: http.StatusNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.method == "" {
				tc.method = http.MethodPost
			}
			got := httptest.NewRecorder()
			control.NewHandler(sim, sim.SetWebhook).ServeHTTP(got, httptest.NewRequest(tc.method, tc.path, strings.NewReader(tc.body)))
			if got.Code != tc.want || !strings.Contains(got.Body.String(), tc.wantBody) {
				t.Errorf("status %d %s, want %d with %q", got.Code, got.Body, tc.want, tc.wantBody)
			}
		})
	}
}
