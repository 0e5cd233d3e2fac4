// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/utils/clock"
)

const (
	// maxTries of a call that may be repeated, with firstPause before the second try and
	// twice that before the third.
	maxTries   = 3
	firstPause = 200 * time.Millisecond
	// maxDrain bounds in bytes what is read of a body only so that its connection can be
	// used again.
	maxDrain = 64 << 10
)

// RoundTripper is a function that is an http.RoundTripper.
type RoundTripper func(*http.Request) (*http.Response, error)

// RoundTrip calls the function.
func (f RoundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Transport repeats the requests that may be repeated, three times in all, while the
// network fails or the server answers 500, 502, 503 or 504. What it gives back is the last
// answer or error. A request with a body is repeated only with a GetBody, which
// http.NewRequest sets for the usual bodies.
func Transport(next http.RoundTripper, clk clock.Clock, may func(*http.Request) bool) http.RoundTripper {
	return RoundTripper(func(r *http.Request) (*http.Response, error) {
		if !may(r) || r.Body != nil && r.Body != http.NoBody && r.GetBody == nil {
			return next.RoundTrip(r)
		}

		for try := 1; ; try++ {
			again, err := fresh(r)
			if err != nil {
				return nil, err
			}

			resp, err := next.RoundTrip(again)
			if try == maxTries || r.Context().Err() != nil || err == nil && !outage(resp.StatusCode) {
				return resp, err
			}

			if err == nil {
				_, _ = io.CopyN(io.Discard, resp.Body, maxDrain)
				_ = resp.Body.Close()
			}

			if err := Pause(r.Context(), clk, firstPause<<(try-1)); err != nil {
				return nil, err
			}
		}
	})
}

// fresh gives a request that can be sent, whatever became of the last one.
func fresh(r *http.Request) (*http.Request, error) {
	again := r.Clone(r.Context())
	if r.GetBody == nil {
		return again, nil
	}

	body, err := r.GetBody()
	if err != nil {
		return nil, fmt.Errorf("read the request again: %w", err)
	}

	again.Body = body

	return again, nil
}

func outage(status int) bool {
	switch status {
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	default:
		return false
	}
}

// Pause waits, unless the context ends first: then it gives the context's error.
func Pause(ctx context.Context, clk clock.Clock, wait time.Duration) error {
	timer := clk.NewTimer(wait)
	defer timer.Stop()

	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
