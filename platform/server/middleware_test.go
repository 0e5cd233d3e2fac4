// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/search"
)

// TestPanic answers a request that panics, and tells the log alone why.
func TestPanic(t *testing.T) {
	t.Parallel()

	var log bytes.Buffer

	s := &Server{clock: clock.RealClock{}, log: slog.New(slog.NewTextHandler(&log, nil))}
	s.metrics, _ = s.newMetrics(nil)
	s.routes = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("the cause") })

	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, BasePath+"/clusters", http.NoBody))

	var got openapi.Problem
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 500 || got.Code != CodeInternal.ID {
		t.Errorf("%d %s", w.Code, w.Body)
	}

	if strings.Contains(w.Body.String(), "the cause") || !strings.Contains(log.String(), "the cause") {
		t.Errorf("answer %s, log %s", w.Body, &log)
	}
}

// TestCodes: every code has a title, and the status that its category says.
func TestCodes(t *testing.T) {
	t.Parallel()

	for _, code := range allCodes() {
		parts := strings.Split(code.ID, "-")
		if len(parts) != 3 || parts[0] != "HYPERFLEET" || code.Title == "" || http.StatusText(code.Status) == "" {
			t.Errorf("%+v", *code)
		}

		if (code.Status == http.StatusNotFound) != (parts[1] == "NTF") || (code.Status == http.StatusConflict) != (parts[1] == "CNF") {
			t.Errorf("%s is %d", code.ID, code.Status)
		}
	}
}

// FuzzFields: what stands in a query never panics, and gives no field that was not asked
// for.
func FuzzFields(f *testing.F) {
	for _, seed := range []string{"id,name", "status.conditions.type", "spec.a.b,spec", ".", "spec..a", ",", "labels.a.b/c"} {
		f.Add(seed)
	}

	f.Fuzz(func(t *testing.T, text string) {
		fields, err := parseFields(&text)
		if err != nil || fields == nil {
			return
		}

		got, ok := fields.of(map[string]any{"id": "1", "name": "n", "spec": map[string]any{"a": []any{map[string]any{"b": 1}}}}).(map[string]any)
		if !ok || got["id"] != "1" {
			t.Errorf("%q: %v", text, got)
		}

		if _, there := got["name"]; there && !strings.Contains(text, "name") {
			t.Errorf("%q: %v", text, got)
		}
	})
}

// TestSearchErrorsAreQueries: an error of the search language is the caller's.
func TestSearchErrorsAreQueries(t *testing.T) {
	t.Parallel()

	_, err := search.Parse("name = ")
	if got := asProblem(err); got.Code != CodeQuery {
		t.Errorf("%+v", got)
	}
}
