// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package retry_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	testclock "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// scriptedTransport is a transport that returns one status after the other. Status 0 is a network error. It
// records the bodies of the requests.
type scriptedTransport struct {
	answers []int
	bodies  []string
}

var errNetwork = errors.New("connection reset")

func (s *scriptedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	body := ""

	if r.Body != nil {
		read, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}

		body = string(read)
	}

	s.bodies = append(s.bodies, body)
	status := s.answers[0]
	s.answers = s.answers[1:]

	if status == 0 {
		return nil, errNetwork
	}

	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader("page"))}, nil
}

func TestTransport(t *testing.T) {
	tests := map[string]struct {
		method  string
		body    string
		answers []int
		tries   int
		status  int
	}{
		"a response is returned":                {method: http.MethodGet, answers: []int{404}, tries: 1, status: 404},
		"an outage is retried":                  {method: http.MethodGet, answers: []int{502, 200}, tries: 2, status: 200},
		"the network fails, then an outage":     {method: http.MethodGet, answers: []int{0, 503, 204}, tries: 3, status: 204},
		"the last response is returned":         {method: http.MethodGet, answers: []int{0, 500, 504}, tries: 3, status: 504},
		"the last error counts":                 {method: http.MethodGet, answers: []int{500, 500, 0}, tries: 3},
		"what may not be repeated is sent once": {method: http.MethodPost, body: "x", answers: []int{500}, tries: 1, status: 500},
		"a repeated request has its body again": {method: http.MethodPut, body: "x", answers: []int{0, 500, 200}, tries: 3, status: 200},
		"a rate limit is not retried":           {method: http.MethodGet, answers: []int{429}, tries: 1, status: 429},
	}

	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			peer := &scriptedTransport{answers: tc.answers}
			transport := retry.NewTransport(peer, timing.InstantClock{}, func(r *http.Request) bool { return r.Method != http.MethodPost })

			req, err := http.NewRequestWithContext(t.Context(), tc.method, "http://peer.test/", strings.NewReader(tc.body))
			if err != nil {
				t.Fatal(err)
			}

			status := 0

			resp, err := transport.RoundTrip(req)
			if err == nil {
				status = resp.StatusCode
				_ = resp.Body.Close()
			}

			if status != tc.status || (status == 0) != errors.Is(err, errNetwork) {
				t.Errorf("got %d, %v, want %d", status, err, tc.status)
			}

			want := make([]string, tc.tries)
			for i := range want {
				want[i] = tc.body
			}

			if diff := cmp.Diff(want, peer.bodies); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTransportEndsWithItsCaller(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	clk := testclock.NewFakeClock(time.Now())
	peer := &scriptedTransport{answers: []int{503, 503, 503}}
	transport := retry.NewTransport(peer, clk, func(*http.Request) bool { return true })

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://peer.test/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}

	done := make(chan error, 1)

	go func() {
		resp, err := transport.RoundTrip(req)
		if err == nil {
			_ = resp.Body.Close()
		}

		done <- err
	}()

	for !clk.HasWaiters() {
		time.Sleep(time.Millisecond)
	}

	cancel()

	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
}
