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

// Fence knows until when the lease of this process holds. It is safe for concurrent use.
type Fence struct {
	clock clock.PassiveClock
	lasts time.Duration

	mu      sync.Mutex
	renewed time.Time
}

// New makes a fence for a lease that lasts so long after its last renewal. Until the process
// has had the lease, nothing is refused: what runs without it is not the leader's.
func New(now clock.PassiveClock, lasts time.Duration) *Fence { return &Fence{clock: now, lasts: lasts} }

// Err says that the process has had the lease, and that it has run out. Both clocks count:
// the one that goes on is stopped with the machine, and the one on the wall can be set.
func (f *Fence) Err() error {
	f.mu.Lock()
	renewed := f.renewed
	f.mu.Unlock()

	if renewed.IsZero() {
		return nil
	}

	now := f.clock.Now()
	if age := max(now.Sub(renewed), now.Round(0).Sub(renewed.Round(0))); age >= f.lasts {
		return fmt.Errorf("the leader's lease was renewed %s ago and lasts %s: another may lead, "+
			"and nothing is written until it is renewed", age.Round(time.Millisecond), f.lasts)
	}

	return nil
}

// Election wraps the transport of leader election, whose writes renew the lease.
func (f *Fence) Election(next http.RoundTripper) http.RoundTripper {
	return retry.RoundTripper(func(r *http.Request) (*http.Response, error) {
		// The server has the time of the renewal from before it was asked.
		began := f.clock.Now()

		response, err := next.RoundTrip(r)
		if err == nil && writes(r) && response.StatusCode < http.StatusMultipleChoices {
			f.mu.Lock()
			f.renewed = began
			f.mu.Unlock()
		}

		return response, err
	})
}

// Writes wraps the transport to what only a leader may change: calls that may change
// something are refused once the lease has run out.
func (f *Fence) Writes(next http.RoundTripper) http.RoundTripper {
	return retry.RoundTripper(func(r *http.Request) (*http.Response, error) {
		if writes(r) {
			if err := f.Err(); err != nil {
				// Transports close what they are given (net/http, RoundTripper).
				if r.Body != nil {
					_ = r.Body.Close()
				}

				return nil, err
			}
		}

		return next.RoundTrip(r)
	})
}

// writes says whether a call may change something (RFC 9110, section 9.2.1).
func writes(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return false
	default:
		return true
	}
}
