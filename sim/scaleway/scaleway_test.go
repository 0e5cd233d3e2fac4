// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package scaleway_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/sim/scaleway"
)

const servers = "/apple-silicon/v1alpha1/zones/fr-par-1/servers"

// sendRequest sends a request and returns the status and the body.
func sendRequest(t *testing.T, s http.Handler, method, path, body, key string) (int, map[string]any) {
	t.Helper()

	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	r.Header.Set("X-Auth-Token", key)

	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}

	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)

	var got map[string]any
	if w.Body.Len() > 0 {
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatalf("%s: %v", w.Body, err)
		}
	}

	return w.Code, got
}

func TestStrictness(t *testing.T) {
	t.Parallel()

	const project = scaleway.DefaultProject

	good := `{"name":"a","project_id":"` + project + `","type":"M4-S","commitment_type":"duration_24h"}`

	tests := map[string]struct {
		method, path, body, key string
		status                  int
		kind                    string
		violations              int
	}{
		"a call that is there":     {method: "GET", path: servers, status: 200},
		"a path that is not":       {method: "GET", path: "/instance/v1/zones/fr-par-1/servers", status: 501, violations: 1},
		"a method that is not":     {method: "PUT", path: servers, status: 501, violations: 1},
		"a field that is not":      {method: "POST", path: servers, body: `{"tags":["x"]}`, status: 400, kind: "invalid_arguments", violations: 1},
		"another key":              {method: "GET", path: servers, key: "x", status: 401, kind: "denied_authentication"},
		"another zone":             {method: "GET", path: strings.Replace(servers, "par-1", "par-2", 1), status: 404, kind: "not_found"},
		"a server that is not":     {method: "GET", path: servers + "/x", status: 404, kind: "not_found"},
		"a page that is too large": {method: "GET", path: servers + "?page_size=101", status: 400, kind: "invalid_arguments"},
		"an order":                 {method: "POST", path: servers, body: good, status: 200},
		"a type that is not":       {method: "POST", path: servers, body: strings.Replace(good, "M4-S", "M9", 1), status: 400, kind: "invalid_arguments"},
		"another project":          {method: "POST", path: servers, body: strings.Replace(good, project, "x", 1), status: 403, kind: "permissions_denied"},
	}

	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if tc.key == "" {
				tc.key = scaleway.DefaultSecretKey
			}

			s := scaleway.New(scaleway.Options{})
			status, body := sendRequest(t, s, tc.method, tc.path, tc.body, tc.key)
			kind, _ := body["type"].(string)

			if status != tc.status || tc.kind != "" && kind != tc.kind || len(s.Violations()) != tc.violations {
				t.Errorf("%d %v, %v: want %d %s and %d violations", status, body, s.Violations(), tc.status, tc.kind, tc.violations)
			}
		})
	}
}

// TestTime checks that the clock alone determines the times of a server.
func TestTime(t *testing.T) {
	t.Parallel()

	var events []scaleway.Event

	clk := testclock.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	s := scaleway.New(scaleway.Options{
		Clock: clk, OnChange: func(_ scaleway.Server, e scaleway.Event) { events = append(events, e) },
	})
	server := s.AddServer("a", "M4-S")

	if server.Status != "ready" || server.IP == "" {
		t.Errorf("added %+v", server)
	}

	post := func(what string) int {
		status, _ := sendRequest(t, s, http.MethodPost, servers+"/"+server.ID+"/"+what, "{}", scaleway.DefaultSecretKey)

		return status
	}

	if got := post("reboot"); got != http.StatusOK {
		t.Errorf("reboot: %d", got)
	}

	if got := post("reinstall"); got != http.StatusConflict {
		t.Errorf("reinstall of a server that restarts: %d", got)
	}

	clk.Step(2 * time.Minute)

	if got := post("reinstall"); got != http.StatusOK {
		t.Errorf("reinstall: %d", got)
	}

	if got := s.Servers()[0]; got.Status != "reinstalling" || got.Password == server.Password {
		t.Errorf("after the reinstallation: %+v", got)
	}

	clk.Step(20 * time.Minute)
	s.Servers()

	if len(events) != 2 || events[0] != scaleway.Rebooted || events[1] != scaleway.Reinstalled {
		t.Errorf("events %v", events)
	}
}

func TestFaultsEnd(t *testing.T) {
	t.Parallel()

	s := scaleway.New(scaleway.Options{})
	s.Inject(scaleway.Fault{Method: http.MethodGet, Path: "/servers", Status: 503, Type: "out_of_stock", Times: 2})
	s.Inject(scaleway.Fault{Delay: time.Hour, Path: "/os"})

	for i, want := range []int{503, 503, 200} {
		if got, _ := sendRequest(t, s, http.MethodGet, servers, "", scaleway.DefaultSecretKey); got != want {
			t.Errorf("call %d: %d, want %d", i+1, got, want)
		}
	}

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()

	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(servers, "servers")+"os", http.NoBody))

	if w.Body.Len() != 0 {
		t.Errorf("a slow response came: %s", w.Body)
	}
}
