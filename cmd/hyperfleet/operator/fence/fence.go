// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fence

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/retry"
)

// Fence tracks until when the lease of this process is valid. It is safe for concurrent use.
type Fence struct {
	clock         clock.PassiveClock
	leaseDuration time.Duration

	mu sync.Mutex
	// renewedAt is the time of the last renewal. It is zero if this process never held the lease.
	renewedAt time.Time
}

// New returns a fence for a lease that is valid for leaseDuration after its last renewal. The fence
// refuses nothing until the process has held the lease for the first time, because such calls are not
// made by a leader.
func New(clk clock.PassiveClock, leaseDuration time.Duration) *Fence {
	return &Fence{clock: clk, leaseDuration: leaseDuration}
}

// CheckLease returns an error if this process has held the lease and the lease has expired. It uses the
// larger of the elapsed monotonic and wall-clock times: the monotonic clock stops while the machine is
// paused, and the wall clock can be set.
func (f *Fence) CheckLease() error {
	f.mu.Lock()
	last := f.renewedAt
	f.mu.Unlock()

	if last.IsZero() {
		return nil
	}

	now := f.clock.Now()
	if age := max(now.Sub(last), now.Round(0).Sub(last.Round(0))); age >= f.leaseDuration {
		return fmt.Errorf("the leader's lease was renewed %s ago and is valid for %s: another replica may be the leader, "+
			"so writes are refused until the lease is renewed", age.Round(time.Millisecond), f.leaseDuration)
	}

	return nil
}

// TrackRenewals wraps the transport of leader election. Each successful write through it renews the
// lease.
func (f *Fence) TrackRenewals(next http.RoundTripper) http.RoundTripper {
	return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		// The renew time in the lease was set before the request was sent.
		start := f.clock.Now()

		response, err := next.RoundTrip(r)
		if err == nil && isWrite(r) && response.StatusCode < http.StatusMultipleChoices {
			f.mu.Lock()
			f.renewedAt = start
			f.mu.Unlock()
		}

		return response, err
	})
}

// GuardWrites wraps a transport to a system that only the leader may change. It returns the error of
// CheckLease for each request that may change something. Other requests pass.
func (f *Fence) GuardWrites(next http.RoundTripper) http.RoundTripper {
	return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		if isWrite(r) {
			if err := f.CheckLease(); err != nil {
				// A RoundTripper must close the request's body (net/http).
				if r.Body != nil {
					_ = r.Body.Close()
				}

				return nil, err
			}
		}

		return next.RoundTrip(r)
	})
}

// isWrite reports whether a request may change something (RFC 9110, section 9.2.1).
func isWrite(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return false
	default:
		return true
	}
}
