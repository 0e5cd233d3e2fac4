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
	// maxAttempts is the number of attempts of a retryable request. The delay before the second attempt
	// is initialDelay, and doubles before each further attempt.
	maxAttempts  = 3
	initialDelay = 200 * time.Millisecond
	// maxDrainBytes limits how much of an unused body is read so that its connection can be reused.
	maxDrainBytes = 64 << 10
)

// RoundTripperFunc is a function that implements http.RoundTripper.
type RoundTripperFunc func(*http.Request) (*http.Response, error)

// RoundTrip calls the function.
func (f RoundTripperFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// NewTransport returns a transport that makes up to three attempts of each request for which isRetryable
// returns true. It retries if the connection fails or the response has status 500, 502, 503 or 504. It
// returns the last response or error. A request with a body is retried only if it has a GetBody, which
// http.NewRequest sets for the usual bodies.
func NewTransport(next http.RoundTripper, clk clock.Clock, isRetryable func(*http.Request) bool) http.RoundTripper {
	return RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		hasBody := r.Body != nil && r.Body != http.NoBody
		if !isRetryable(r) || hasBody && r.GetBody == nil {
			return next.RoundTrip(r)
		}

		for attempt := 1; ; attempt++ {
			clone, err := cloneRequest(r)
			if err != nil {
				return nil, err
			}

			resp, err := next.RoundTrip(clone)
			if attempt == maxAttempts || r.Context().Err() != nil || err == nil && !isServerOutage(resp.StatusCode) {
				return resp, err
			}

			if err == nil {
				_, _ = io.CopyN(io.Discard, resp.Body, maxDrainBytes)
				_ = resp.Body.Close()
			}

			if err := Sleep(r.Context(), clk, initialDelay<<(attempt-1)); err != nil {
				return nil, err
			}
		}
	})
}

// cloneRequest returns a copy of the request with an unread body.
func cloneRequest(r *http.Request) (*http.Request, error) {
	clone := r.Clone(r.Context())
	if r.GetBody == nil {
		return clone, nil
	}

	body, err := r.GetBody()
	if err != nil {
		return nil, fmt.Errorf("get request body for retry: %w", err)
	}

	clone.Body = body

	return clone, nil
}

func isServerOutage(status int) bool {
	switch status {
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	default:
		return false
	}
}

// Sleep waits for the given time. If the context ends earlier, it returns the context's error.
func Sleep(ctx context.Context, clk clock.Clock, delay time.Duration) error {
	timer := clk.NewTimer(delay)
	defer timer.Stop()

	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// EndGrace is how long work that must not be lost may go on after its context has ended. At the end of a program, the
// contexts of its work end early enough that the program waits for longer than that: the operator ends those of its
// controllers at once and those of requests after 2 s, and waits 8 s, and the platform's programs end those of events and
// sends and wait until the work has ended. Each program ends within 20 s.
const EndGrace = 5 * time.Second

// WithGrace returns a context that ends grace after ctx has ended, for work that a program finishes at its end.
// The caller must call cancel.
func WithGrace(ctx context.Context, grace time.Duration) (graced context.Context, cancel context.CancelFunc) {
	graced, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(grace)
		defer timer.Stop()

		select {
		case <-timer.C:
		case <-graced.Done():
		}

		end()
	})

	return graced, func() {
		stop()
		end()
	}
}
