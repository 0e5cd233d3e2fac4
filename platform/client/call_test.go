// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	gocmp "cmp"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// instantClock records the durations of timers, which fire at once.
type instantClock struct {
	clock.RealClock

	mu     sync.Mutex
	pauses []time.Duration
}

func (c *instantClock) NewTimer(wait time.Duration) clock.Timer {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.pauses = append(c.pauses, wait)

	return c.RealClock.NewTimer(0)
}

func returnHalf() float64 { return 0.5 }

// recorder has the requests that a server got.
type recorder struct {
	mu       sync.Mutex
	requests []*http.Request
	bodies   []string
}

func (s *recorder) handler(answer func(n int, w http.ResponseWriter, r *http.Request)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)

		s.mu.Lock()
		s.requests = append(s.requests, r)
		s.bodies = append(s.bodies, string(body))
		n := len(s.requests)
		s.mu.Unlock()

		answer(n, w, r)
	})
}

func startServer(t *testing.T, handler http.Handler) string {
	t.Helper()

	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)

	return server.URL
}

// newCaller returns a client for calls of task files, with the defaults of the adapter.
func newCaller(t *testing.T, conf platform.APIClient, options client.Options) *client.Client {
	t.Helper()

	if options.Clock == nil {
		options.Clock = &instantClock{}
	}

	options.Policy = client.Policy{
		Attempts: gocmp.Or(options.Policy.Attempts, 3), Backoff: client.Exponential, BaseDelay: time.Second,
		MaxDelay: gocmp.Or(options.Policy.MaxDelay, 30*time.Second),
	}

	out, err := client.New(conf, options)
	must.Do(t, err)
	out.SetRandom(returnHalf)

	return out
}

func TestRequestURLs(t *testing.T) {
	t.Parallel()

	var got recorder

	base := startServer(t, got.handler(func(_ int, w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.URL.String())
	}))
	caller := newCaller(t, platform.APIClient{BaseURL: base + "/fleet/"}, client.Options{})

	for name, tc := range map[string]struct{ url, want, fails string }{
		"below the root":             {url: "clusters/1", want: "/fleet/api/hyperfleet/v1/clusters/1"},
		"a leading slash":            {url: "/clusters/1", want: "/fleet/api/hyperfleet/v1/clusters/1"},
		"the query stays":            {url: "clusters?search=name%3D%27a%27", want: "/fleet/api/hyperfleet/v1/clusters?search=name%3D%27a%27"},
		"another API below the base": {url: "api/other/x", want: "/fleet/api/other/x"},
		"an href of the API":         {url: "/api/hyperfleet/v1/clusters/1", want: "/fleet/api/hyperfleet/v1/clusters/1"},
		"escapes stay":               {url: "clusters/a%2Fb", want: "/fleet/api/hyperfleet/v1/clusters/a%2Fb"},
		"absolute":                   {url: base + "/elsewhere?x=1", want: "/elsewhere?x=1"},
		"a path with ..":             {url: "clusters/../leases/x", fails: "must not contain . or .."},
		"an escaped ..":              {url: "clusters/%2e%2e/leases/x", fails: "must not contain . or .."},
		"empty":                      {url: " ", fails: "empty"},
		"a file URL":                 {url: "file:///etc/passwd", fails: "only http and https"},
		"no scheme":                  {url: "//host/path", fails: "the scheme is missing"},
		"no URL":                     {url: "http://[", fails: "is invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			response, err := caller.Call(t.Context(), client.Call{URL: tc.url})

			switch {
			case tc.fails != "":
				if err == nil || !strings.Contains(err.Error(), tc.fails) || client.IsTransient(err) {
					t.Errorf("got %v, want a permanent error with %q", err, tc.fails)
				}
			case err != nil:
				t.Error(err)
			case string(response.Body) != tc.want:
				t.Errorf("request to %s, want %s", response.Body, tc.want)
			}
		})
	}
}

func TestRetries(t *testing.T) {
	t.Parallel()

	second := time.Second

	for name, tc := range map[string]struct {
		answers    []int
		retryAfter string
		attempts   int
		backoff    string
		pauses     []time.Duration
		status     int
	}{
		"408 and 429 are retried":                 {answers: []int{408, 429, 201}, pauses: []time.Duration{second, 2 * second}},
		"three attempts by default":               {answers: []int{500, 500, 500}, pauses: []time.Duration{second, 2 * second}, status: 500},
		"linear":                                  {answers: []int{500, 500, 500, 200}, attempts: 4, backoff: "linear", pauses: []time.Duration{second, 2 * second, 3 * second}},
		"constant":                                {answers: []int{500, 500, 200}, backoff: "constant", pauses: []time.Duration{second, second}},
		"exponential up to the maximum":           {answers: []int{500, 500, 500, 500, 500, 200}, attempts: 6, pauses: []time.Duration{second, 2 * second, 4 * second, 5 * second, 5 * second}},
		"at most ten attempts":                    {answers: []int{500, 500, 500, 500, 500, 500, 500, 500, 500, 500}, attempts: 1000, backoff: "constant", pauses: []time.Duration{second, second, second, second, second, second, second, second, second}, status: 500},
		"a rejection is final":                    {answers: []int{403}, status: 403},
		"Retry-After is used":                     {answers: []int{429, 200}, retryAfter: "4", pauses: []time.Duration{4 * second}},
		"a long Retry-After":                      {answers: []int{429}, retryAfter: "3600", status: 429},
		"a connection that breaks":                {answers: []int{0, 200}, pauses: []time.Duration{second}},
		"an invalid Retry-After":                  {answers: []int{429, 200}, retryAfter: "soon", pauses: []time.Duration{second}},
		"a Retry-After shorter than the back-off": {answers: []int{503, 503, 200}, retryAfter: "1", pauses: []time.Duration{second, 2 * second}},
		"a negative Retry-After":                  {answers: []int{503, 200}, retryAfter: "-5", pauses: []time.Duration{second}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var got recorder

			base := startServer(t, got.handler(func(n int, w http.ResponseWriter, _ *http.Request) {
				if tc.answers[n-1] == 0 {
					panic(http.ErrAbortHandler)
				}

				w.Header().Set("Retry-After", tc.retryAfter)
				w.WriteHeader(tc.answers[n-1])
			}))
			timer := &instantClock{}
			caller := newCaller(t, platform.APIClient{BaseURL: base}, client.Options{Policy: client.Policy{MaxDelay: 5 * second}, Clock: timer})

			_, err := caller.Call(t.Context(), client.Call{
				Method: http.MethodPut, URL: "clusters/1/statuses", Body: `{"a":1}`, Attempts: tc.attempts, Backoff: tc.backoff,
			})

			var status *client.Error
			if errors.As(err, &status) != (tc.status != 0) || status != nil && status.Status != tc.status {
				t.Errorf("got %v, want %d", err, tc.status)
			}

			if diff := cmp.Diff(tc.pauses, timer.pauses); diff != "" {
				t.Errorf("pauses (-want +got):\n%s", diff)
			}

			if len(got.bodies) != len(tc.answers) {
				t.Errorf("%d attempts, want %d", len(got.bodies), len(tc.answers))
			}

			for _, body := range got.bodies {
				if body != `{"a":1}` {
					t.Errorf("an attempt has the body %q", body)
				}
			}
		})
	}
}

func TestJitterIsTenPercentAtMost(t *testing.T) {
	t.Parallel()

	for _, random := range []float64{0, 0.25, 0.999} {
		timer := &instantClock{}
		base := startServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }))

		caller := newCaller(t, platform.APIClient{BaseURL: base}, client.Options{Clock: timer})
		caller.SetRandom(func() float64 { return random })

		_, _ = caller.Call(t.Context(), client.Call{URL: "x", Attempts: 2})

		want := time.Second + time.Duration((2*random-1)*float64(100*time.Millisecond))
		if len(timer.pauses) != 1 || (timer.pauses[0]-want).Abs() > time.Microsecond {
			t.Errorf("random %v: %v, want %v", random, timer.pauses, want)
		}
	}
}

func tokenFile(t *testing.T, token string) string {
	t.Helper()

	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	return path
}

func TestTokenIsSentOnlyToTheFleetAPI(t *testing.T) {
	t.Parallel()

	var api, other recorder

	otherURL := startServer(t, other.handler(func(int, http.ResponseWriter, *http.Request) {}))
	base := startServer(t, api.handler(func(_ int, w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/hyperfleet/v1/away":
			http.Redirect(w, r, otherURL+"/stolen", http.StatusTemporaryRedirect)
		case "/api/hyperfleet/v1/near":
			http.Redirect(w, r, "/api/hyperfleet/v1/here", http.StatusFound)
		}
	}))
	caller := newCaller(t, platform.APIClient{BaseURL: base, TokenFile: tokenFile(t, "t0ken")},
		client.Options{Headers: map[string]string{"X-Tenant": "blue"}})

	for _, url := range []string{"clusters/1", "near", otherURL + "/hook"} {
		if _, err := caller.Call(t.Context(), client.Call{URL: url}); err != nil {
			t.Fatal(err)
		}
	}

	_, err := caller.Call(t.Context(), client.Call{URL: "away"})
	if err == nil || !strings.Contains(err.Error(), "another host") || client.IsTransient(err) {
		t.Errorf("redirect to another host: %v", err)
	}

	for _, r := range api.requests {
		if r.Header.Get("Authorization") != "Bearer t0ken" || r.Header.Get("X-Tenant") != "blue" {
			t.Errorf("%s: headers to the fleet API: %v", r.URL, r.Header)
		}
	}

	if len(other.requests) != 1 {
		t.Fatalf("%d requests to the other host, want 1", len(other.requests))
	}

	if h := other.requests[0].Header; h.Get("Authorization") != "" || h.Get("X-Tenant") != "" {
		t.Errorf("headers to the other host: %v", h)
	}
}

// A redirect with status 301, 302 or 303 would make a read of a report, which would then count as sent.
func TestRedirectedReportIsNotSent(t *testing.T) {
	t.Parallel()

	var api recorder

	base := startServer(t, api.handler(func(_ int, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/hyperfleet/v1/near" {
			http.Redirect(w, r, "/api/hyperfleet/v1/here", http.StatusFound)
		}
	}))

	_, err := newCaller(t, platform.APIClient{BaseURL: base}, client.Options{}).Call(t.Context(),
		client.Call{Method: http.MethodPut, URL: "near", Body: "{}"})
	if err == nil || !strings.Contains(err.Error(), "another method") || len(api.requests) != 1 {
		t.Errorf("%d requests, %v", len(api.requests), err)
	}
}

func TestErrorsContainNoSecrets(t *testing.T) {
	t.Parallel()

	base := startServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"status":400,"code":"X","title":"%s"}`, body)
	}))
	caller := newCaller(t, platform.APIClient{BaseURL: "http://127.0.0.1:1"}, client.Options{})

	for _, url := range []string{
		base + "/x?key=s3cret", strings.Replace(base, "//", "//user:s3cret@", 1), "http://127.0.0.1:1/x?key=s3cret", "x?key=s3cret",
	} {
		_, err := caller.Call(t.Context(), client.Call{
			Method: http.MethodPost, URL: url, Body: "s3cret", Attempts: 1, Header: http.Header{"X-Key": {"s3cret"}},
		})
		if err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%v", err)
		}
	}
}

func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()

	var got recorder

	base := startServer(t, got.handler(func(_ int, w http.ResponseWriter, _ *http.Request) {
		page := make([]byte, 1<<20)
		for range 5 {
			_, _ = w.Write(page)
		}
	}))

	_, err := newCaller(t, platform.APIClient{BaseURL: base}, client.Options{}).Call(t.Context(), client.Call{URL: "x"})
	if err == nil || !strings.Contains(err.Error(), "larger than") || len(got.requests) != 1 {
		t.Errorf("%v after %d attempts", err, len(got.requests))
	}
}

func TestHangingAttemptTimesOut(t *testing.T) {
	t.Parallel()

	release := make(chan struct{})
	base := startServer(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))

	defer close(release)

	caller := newCaller(t, platform.APIClient{BaseURL: base}, client.Options{})

	_, err := caller.Call(t.Context(), client.Call{URL: "x", Timeout: time.Millisecond, Attempts: 2})
	if !client.IsTransient(err) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want a transient timeout", err)
	}
}

// The CA of the fleet API is not trusted for other servers.
func TestCAOfTheAPI(t *testing.T) {
	t.Parallel()

	say := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "here") })
	api, other := httptest.NewTLSServer(say), httptest.NewTLSServer(say)
	t.Cleanup(api.Close)
	t.Cleanup(other.Close)

	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}

	for name, tc := range map[string]struct {
		file, url string
		trusted   bool
	}{
		"the API": {file, "clusters", true}, "without it": {"", "clusters", false}, "another": {file, other.URL, false},
	} {
		caller := newCaller(t, platform.APIClient{BaseURL: api.URL, CAFile: tc.file}, client.Options{Policy: client.Policy{Attempts: 1}})
		if _, err := caller.Call(t.Context(), client.Call{URL: tc.url}); (err == nil) != tc.trusted {
			t.Errorf("%s: %v", name, err)
		}
	}

	if _, err := client.New(platform.APIClient{BaseURL: api.URL, CAFile: file + ".none"}, client.Options{}); err == nil ||
		!strings.Contains(err.Error(), "clients.hyperfleet_api.ca_file") {
		t.Errorf("missing CA file: %v", err)
	}
}
