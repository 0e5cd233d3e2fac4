// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/scrape"
)

const id = "0197f0a0-0000-7000-8000-000000000001"

// newPeer returns a client of a server whose responses the real API cannot be made to return.
func newPeer(t *testing.T, handle http.HandlerFunc) (*client.Client, *prometheus.Registry) {
	t.Helper()

	return newPeerWithTimeout(t, 2*time.Second, handle)
}

func newPeerWithTimeout(t *testing.T, timeout time.Duration, handle http.HandlerFunc) (*client.Client, *prometheus.Registry) {
	t.Helper()

	server := httptest.NewServer(handle)
	t.Cleanup(server.Close)

	registry := prometheus.NewRegistry()

	calls, err := metrics.NewCallMetrics(registry, nil)
	must.Do(t, err)

	c, err := client.New(platform.APIClient{BaseURL: server.URL + "/", Timeout: timeout}, client.Options{Calls: calls})
	must.Do(t, err)

	return c, registry
}

func newProblem(status int, code string) (string, string) {
	return "application/problem+json; charset=utf-8",
		fmt.Sprintf(`{"type":"about:blank","title":"No","status":%d,"code":%q,"detail":"because\nof it"}`, status, code)
}

// TestErrorKinds checks that only a well-formed response of the API means that a resource does
// not exist.
func TestErrorKinds(t *testing.T) {
	t.Parallel()

	html := func(int, string) (string, string) { return "text/html", "<h1>404 page not found</h1>" }
	wrongType := func(status int, code string) (string, string) {
		_, body := newProblem(status, code)

		return "application/json", body
	}
	wrongStatus := func(int, string) (string, string) { return newProblem(http.StatusOK, "HYPERFLEET-NTF-001") }
	cut := func(status int, code string) (string, string) {
		kind, body := newProblem(status, code)

		return kind, body[:len(body)-3]
	}

	for name, tc := range map[string]struct {
		status    int
		code      string
		answer    func(int, string) (string, string)
		is        error
		temporary bool
	}{
		"no such resource":           {404, "HYPERFLEET-NTF-001", newProblem, client.ErrNotFound, false},
		"no such cluster, upstream":  {404, "HYPERFLEET-NTF-002", newProblem, client.ErrNotFound, false},
		"no such pool, upstream":     {404, "HYPERFLEET-NTF-003", newProblem, client.ErrNotFound, false},
		"no such route":              {404, "HYPERFLEET-NTF-000", newProblem, nil, false},
		"a 404 of another server":    {404, "", html, nil, true},
		"of another content type":    {404, "HYPERFLEET-NTF-001", wrongType, nil, true},
		"of another status":          {404, "", wrongStatus, nil, true},
		"cut off":                    {404, "HYPERFLEET-NTF-001", cut, nil, true},
		"a code of another API":      {404, "NTF-001", newProblem, nil, true},
		"that code, another status":  {400, "HYPERFLEET-NTF-001", newProblem, nil, false},
		"a cursor that is gone":      {410, "HYPERFLEET-VAL-010", newProblem, client.ErrCursorGone, false},
		"a 410 of another server":    {410, "", html, nil, true},
		"a conflict":                 {409, "HYPERFLEET-CNF-003", newProblem, nil, true},
		"a rejection":                {422, "HYPERFLEET-VAL-001", newProblem, nil, false},
		"too many":                   {429, "HYPERFLEET-LIM-001", newProblem, nil, true},
		"unavailable":                {503, "HYPERFLEET-INT-001", newProblem, nil, true},
		"a redirect is not followed": {302, "", html, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			c, _ := newPeer(t, func(w http.ResponseWriter, _ *http.Request) {
				kind, body := tc.answer(tc.status, tc.code)
				w.Header().Set("Content-Type", kind)
				w.Header().Set("Location", "http://127.0.0.1:1/")
				w.WriteHeader(tc.status)
				_, _ = io.WriteString(w, body)
			})

			_, err := c.Get(t.Context(), id)
			if err == nil {
				t.Fatal("no error")
			}

			for _, kind := range []error{client.ErrNotFound, client.ErrCursorGone} {
				if errors.Is(err, kind) != errors.Is(tc.is, kind) {
					t.Errorf("errors.Is(%v, %v) = %t", err, kind, !errors.Is(err, kind))
				}
			}

			if got := client.IsTransient(err); got != tc.temporary {
				t.Errorf("Temporary(%v) = %t", err, got)
			}

			if strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), id) {
				t.Errorf("error %q", err)
			}
		})
	}
}

func TestCalls(t *testing.T) {
	t.Parallel()

	type seen struct{ Method, URL, Body string }

	var got []seen

	answers := map[string]string{
		"/resources/" + id: `{"id":"` + id + `","spec":{"a":9007199254740993}}`,
		"/resources":       `{"items":[],"page":1,"size":0,"total":0}`,
		"/clusters":        `{"items":[{"id":"` + id + `"}],"page":2,"size":1,"total":3}`,
		"/changes":         `{"items":[],"next":"n"}`,
		"/leases/a.b":      `{"name":"a.b","holder":"me","expires_in_seconds":2.5}`,
	}
	c, registry := newPeer(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		path := strings.TrimPrefix(r.URL.Path, client.BasePath)
		query := r.URL.Query().Encode()
		got = append(got, seen{r.Method, path + "?" + query, string(body)})

		if r.Method == http.MethodPut && strings.HasSuffix(path, "/statuses") {
			w.WriteHeader(http.StatusNoContent)

			return
		}

		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answers[path])
	})
	ctx := t.Context()

	resource, err := c.Get(ctx, id)
	if err != nil || resource.Id != id || resource.Spec["a"] != int64(9007199254740993) {
		t.Errorf("Get() = %v, %v", resource, err)
	}

	if page, err := c.List(ctx, "clusters", client.ListOptions{Page: 2, Size: 1000, Search: "a = 'b'", Fields: "id"}); err != nil ||
		page.Total != 3 || len(page.Items) != 1 {
		t.Errorf("List() = %v, %v", page, err)
	}

	if _, err := c.List(ctx, "resources", client.ListOptions{Size: 7, Order: "name asc"}); err != nil {
		t.Error(err)
	}

	if changes, err := c.Changes(ctx, "", "", 0); err != nil || changes.Next != "n" {
		t.Errorf("Changes() = %v, %v", changes, err)
	}

	if _, err := c.Changes(ctx, "n", "Cluster", time.Hour); err != nil {
		t.Error(err)
	}

	if lease, err := c.PutLease(ctx, "a.b", "me", 3*time.Second); err != nil || lease.Holder != "me" || lease.ExpiresInSeconds != 2.5 {
		t.Errorf("PutLease() = %v, %v", lease, err)
	}

	if stored, err := c.PutStatus(ctx, id, openapi.StatusReport{Adapter: "a"}); err != nil || stored {
		t.Errorf("PutStatus() = %t, %v", stored, err)
	}

	report, err := json.Marshal(openapi.StatusReport{Adapter: "a"})
	must.Do(t, err)

	want := []seen{
		{"GET", "/resources/" + id + "?", ""},
		{"GET", "/clusters?fields=id&order=id+asc&page=2&search=a+%3D+%27b%27&size=100", ""},
		{"GET", "/resources?order=name+asc&page=1&size=7", ""},
		{"GET", "/changes?wait=0", ""},
		{"GET", "/changes?after=n&kind=Cluster&wait=55", ""},
		{"PUT", "/leases/a.b?", `{"holder":"me","ttl_seconds":3}`},
		{"PUT", "/resources/" + id + "/statuses?", string(report)},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}

	for operation, want := range map[string]float64{"get": 1, "list": 2, "changes": 2, "leases": 1, "put-status": 1} {
		if got := scrape.SumOf(t, registry, "hyperfleet_external_call_duration_seconds_count", `operation="`+operation+`"`); got != want {
			t.Errorf("%v calls of %s are counted, want %v", got, operation, want)
		}
	}
}

func TestRetriesAndTimeouts(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		// answers has a status for each attempt. 0 means no response within the timeout.
		answers []int
		want    string
		tries   int32
	}{
		"a short outage":             {answers: []int{503, 500, 200}, tries: 3},
		"a long outage":              {answers: []int{503, 503, 503, 200}, want: "status 503", tries: 3},
		"a rejection is final":       {answers: []int{400, 200}, want: "400", tries: 1},
		"a timeout, then a response": {answers: []int{0, 200}, tries: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var tries atomic.Int32

			c, _ := newPeer(t, func(w http.ResponseWriter, r *http.Request) {
				status := tc.answers[tries.Add(1)-1]
				if status == 0 {
					// The body is read, so that the server notices the end of the request.
					_, _ = io.Copy(io.Discard, r.Body)
					<-r.Context().Done()

					return
				}

				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(status)
				_, _ = io.WriteString(w, `{"holder":"me"}`)
			})

			_, err := c.PutLease(t.Context(), "a", "me", time.Second)
			if (tc.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v", err)
			}

			if tries.Load() != tc.tries {
				t.Errorf("%d attempts", tries.Load())
			}
		})
	}
}

// TestLongPollOutlastsTheTimeout checks that a request for changes may take as long as its wait.
func TestLongPollOutlastsTheTimeout(t *testing.T) {
	t.Parallel()

	c, _ := newPeerWithTimeout(t, 50*time.Millisecond, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(200 * time.Millisecond):
		case <-r.Context().Done():
			return
		}

		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"items":[],"next":"n"}`)
	})

	if _, err := c.Changes(t.Context(), "a", "", 20*time.Second); err != nil {
		t.Error(err)
	}
}

func TestTokensAndTraces(t *testing.T) {
	t.Parallel()

	var token, parent, agent string

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, parent, agent = r.Header.Get("Authorization"), r.Header.Get("Traceparent"), r.UserAgent()

		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{}`)
	}))
	t.Cleanup(server.Close)

	file := filepath.Join(t.TempDir(), "token")

	c, err := client.New(platform.APIClient{BaseURL: server.URL, TokenFile: file}, client.Options{UserAgent: "hyperfleet-test"})
	must.Do(t, err)

	if _, err := c.Get(t.Context(), id); err == nil || !strings.Contains(err.Error(), "token of clients") {
		t.Errorf("without a token: %v", err)
	}

	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}})
	ctx := trace.ContextWithSpanContext(context.Background(), span)

	for _, text := range []string{"first", "second"} {
		must.Do(t, os.WriteFile(file, []byte(text+"\n"), 0o600))

		if _, err := c.Get(ctx, id); err != nil {
			t.Fatal(err)
		}

		if token != "Bearer "+text || parent != "00-01000000000000000000000000000000-0200000000000000-00" || agent != "hyperfleet-test" {
			t.Errorf("token %q, trace %q, agent %q", token, parent, agent)
		}
	}

	must.Do(t, os.WriteFile(file, []byte("a\nb"), 0o600))

	if _, err := c.Get(ctx, id); err == nil || !strings.Contains(err.Error(), "more than one line") || strings.Contains(err.Error(), "a\nb") {
		t.Errorf("a file of two lines: %v", err)
	}
}

func TestNew(t *testing.T) {
	t.Parallel()

	noPEM := filepath.Join(t.TempDir(), "ca")
	must.Do(t, os.WriteFile(noPEM, []byte("no"), 0o600))

	for name, conf := range map[string]platform.APIClient{
		"nothing":        {},
		"no scheme":      {BaseURL: "api:8000"},
		"a password":     {BaseURL: "http://me:hunter2@api"},
		"a query":        {BaseURL: "http://api?x=y"},
		"an invalid URL": {BaseURL: "http://hunter2@["},
		"no CA":          {BaseURL: "https://api", CAFile: "/nowhere"},
		"an invalid CA":  {BaseURL: "https://api", CAFile: noPEM},
	} {
		if _, err := client.New(conf, client.Options{}); err == nil || strings.Contains(err.Error(), "hunter2") ||
			!strings.HasPrefix(err.Error(), "clients.hyperfleet_api.") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestInvalidResponses checks that a response that only resembles one of the API is an error.
func TestInvalidResponses(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct{ kind, body string }{
		"an HTML page":   {"text/html", "<html>"},
		"cut off":        {"application/json", `{"id":"`},
		"no JSON object": {"application/json", `[]`},
	} {
		c, _ := newPeer(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", tc.kind)
			_, _ = io.WriteString(w, tc.body)
		})

		if _, err := c.Get(t.Context(), id); err == nil || errors.Is(err, client.ErrNotFound) || !client.IsTransient(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestListReadsTheWholePage checks that a page that the API has ended early is completed.
func TestListReadsTheWholePage(t *testing.T) {
	t.Parallel()

	var got []string

	answers := []string{
		`{"items":[{"id":"a"},{"id":"b"}],"page":2,"size":2,"total":9,"next_offset":7}`,
		`{"items":[{"id":"c"}],"page":1,"size":1,"total":3,"next_offset":1}`,
		`{"items":[{"id":"d"}],"page":1,"size":1,"total":2}`,
	}

	c, _ := newPeer(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answers[len(got)%len(answers)])
		got = append(got, r.URL.Query().Get("page")+" "+r.URL.Query().Get("size")+" "+r.URL.Query().Get("search"))
	})

	list, err := c.List(t.Context(), "clusters", client.ListOptions{Page: 2, Size: 5, Search: "x = 'y' or x = 'z'"})
	must.Do(t, err)

	if len(list.Items) != 4 || list.Size != 4 || list.Total != 9 || list.Items[3].Id != "d" {
		t.Errorf("%+v", list)
	}

	want := []string{"2 5 x = 'y' or x = 'z'", "1 3 id > 'b' and (x = 'y' or x = 'z')", "1 2 id > 'c' and (x = 'y' or x = 'z')"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}

	// With another order, the caller continues.
	got = nil

	if list, err := c.List(t.Context(), "clusters", client.ListOptions{Order: "name asc"}); err != nil || len(got) != 1 || list.NextOffset != 7 {
		t.Errorf("%+v, %v after %v", list, err, got)
	}
}
