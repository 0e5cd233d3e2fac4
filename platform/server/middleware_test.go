// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/conditions"
	"github.com/hyperfleet/hyperfleet/platform/entity"
)

// TestPanic checks that a panic gets a response, and that only the log has its cause.
func TestPanic(t *testing.T) {
	t.Parallel()

	var log bytes.Buffer

	s := &Server{clock: clock.RealClock{}, log: slog.New(slog.NewTextHandler(&log, nil))}
	s.metrics, _ = s.newMetrics(nil)
	s.routes = http.NewServeMux()
	s.routes.HandleFunc("/", func(http.ResponseWriter, *http.Request) { panic("the cause") })

	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, BasePath+"/clusters", http.NoBody))

	var got openapi.Problem
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 500 || got.Code != CodeInternal.ID {
		t.Errorf("%d %s", w.Code, w.Body)
	}

	if strings.Contains(w.Body.String(), "the cause") || !strings.Contains(log.String(), "the cause") {
		t.Errorf("response %s, log %s", w.Body, &log)
	}
}

// TestGzip checks that large responses are compressed for clients that accept this, and have the same content.
func TestGzip(t *testing.T) {
	t.Parallel()

	large := encodedList{items: []json.RawMessage{json.RawMessage(`{"name":"` + strings.Repeat("x", minGzipSize) + `"}`), []byte("{}")}}

	for name, test := range map[string]struct {
		accepts string
		body    any
		etag    string
		want    bool
	}{
		"large":                    {"deflate, GZIP;q=0.5", large, "", true},
		"any":                      {"*", large, "", true},
		"small":                    {"gzip", encodedList{}, "", false},
		"no header":                {"", large, "", false},
		"refused":                  {"gzip; q=0.000, *", large, "", false},
		"any, but not this one":    {"*;q=0.1,gzip;q=0", large, "", false},
		"another one":              {"br", large, "", false},
		"everything else, refused": {"*;q=0", large, "", false},
		"a strong ETag":            {"gzip", large, `"a.b"`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			plain, got := httptest.NewRecorder(), httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)

			if err := (response{status: http.StatusOK, body: test.body}).write(plain, r); err != nil {
				t.Fatal(err)
			}

			r.Header.Set("Accept-Encoding", test.accepts)

			if err := (response{status: http.StatusOK, body: test.body, etag: test.etag}).write(got, r); err != nil {
				t.Fatal(err)
			}

			body, isCompressed := io.Reader(got.Body), got.Header().Get("Content-Encoding") == "gzip"
			if isCompressed != test.want || got.Header().Get("Vary") != "Accept-Encoding" {
				t.Errorf("headers %v", got.Header())
			}

			if isCompressed {
				var err error
				if body, err = gzip.NewReader(got.Body); err != nil {
					t.Fatal(err)
				}
			}

			if text, err := io.ReadAll(body); err != nil || !bytes.Equal(text, plain.Body.Bytes()) {
				t.Errorf("%d bytes, want %d; %v", len(text), plain.Body.Len(), err)
			}
		})
	}
}

// TestCodes checks that every code has a title and a status that matches its category.
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

// FuzzFields checks that no query parameter causes a panic or selects a field that it does not
// name.
func FuzzFields(f *testing.F) {
	for _, seed := range []string{"id,name", "status.conditions.type", "spec.a.b,spec", ".", "spec..a", ",", "labels.a.b/c"} {
		f.Add(seed)
	}

	f.Fuzz(func(t *testing.T, text string) {
		fields, err := parseFields(text)
		if err != nil || fields == nil {
			return
		}

		got, ok := fields.selectFrom(map[string]any{"id": "1", "name": "n", "spec": map[string]any{"a": []any{map[string]any{"b": 1}}}}).(map[string]any)
		if !ok || got["id"] != "1" {
			t.Errorf("%q: %v", text, got)
		}

		if _, there := got["name"]; there && !strings.Contains(text, "name") {
			t.Errorf("%q: %v", text, got)
		}
	})
}

// allCodes returns all codes.
func allCodes() []*Code {
	return []*Code{
		CodeInvalid, CodeQuery, CodeChildRoute, CodeTooLarge, CodeMediaType, CodeMethod, CodeCursorGone, CodeChanged, CodeUnauthenticated,
		CodeInvalidToken, CodeForbidden, CodeNoRoute, CodeNoResource, CodeExists, CodeInUse, CodeState, CodeInternal,
		CodeRule, CodeUnavailable, CodeKeysUnavailable,
	}
}

// TestReference checks that the API's reference has all codes, metrics and reasons.
func TestReference(t *testing.T) {
	t.Parallel()

	page, err := os.ReadFile("../../docs/reference/fleet-api.md")
	if err != nil {
		t.Fatal(err)
	}

	for _, code := range allCodes() {
		if want := fmt.Sprintf("| `%s` | %d |", code.ID, code.Status); !strings.Contains(string(page), want) {
			t.Errorf("the reference does not contain %s", want)
		}
	}

	for _, reason := range []string{
		conditions.ReasonReconciledAll, conditions.ReasonMissingAdapters, conditions.ReasonFailedAdapters, conditions.ReasonWaitingForChildren, conditions.ReasonReferenceMissing,
		conditions.ReasonDatabaseRestored,
	} {
		if !strings.Contains(string(page), "| `"+reason+"` |") {
			t.Errorf("the reference does not contain reason %s", reason)
		}
	}

	s := &Server{clock: clock.RealClock{}, registry: &entity.Registry{}}
	if s.metrics, err = s.newMetrics(nil); err != nil {
		t.Fatal(err)
	}

	described := make(chan *prometheus.Desc, 20)
	s.metrics.pending.Describe(described)
	s.metrics.requests.Describe(described)
	s.metrics.count.Describe(described)
	s.metrics.inFlight.Describe(described)

	for _, counter := range s.metrics.starts {
		counter.Describe(described)
	}

	close(described)

	for desc := range described {
		_, rest, _ := strings.Cut(desc.String(), `fqName: "`)
		name, _, _ := strings.Cut(rest, `"`)

		if !strings.Contains(string(page), "| `"+name+"` |") {
			t.Errorf("the reference does not contain metric %s", name)
		}
	}
}
