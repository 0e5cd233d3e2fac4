// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	// reserveShare of the hour's calls, and at most maxReserve of them, are kept for what
	// must not wait: making runners and removing them.
	reserveShare = 10
	maxReserve   = 500
	// slowListing is how often the runners are listed once the reserve is touched.
	slowListing = time.Minute
)

// budget follows how many calls are left to these credentials in this hour
// (https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api).
type budget struct {
	clock clock.PassiveClock

	mu        sync.Mutex
	known     bool
	limit     int
	remaining int
	reset     time.Time
}

// observe reads an answer's headers. Servers without limits send none.
func (b *budget) observe(header http.Header) {
	limit, errLimit := strconv.Atoi(header.Get("X-Ratelimit-Limit"))
	remaining, errRemaining := strconv.Atoi(header.Get("X-Ratelimit-Remaining"))
	reset, errReset := strconv.ParseInt(header.Get("X-Ratelimit-Reset"), 10, 64)

	if errLimit != nil || errRemaining != nil || errReset != nil {
		return
	}

	b.mu.Lock()
	defer b.mu.Unlock()

	at := time.Unix(reset, 0)
	// Answers overtake each other: within one hour the lowest number is the newest.
	if b.known && at.Equal(b.reset) && remaining > b.remaining {
		return
	}

	if b.known && at.Before(b.reset) {
		return
	}

	b.known, b.limit, b.remaining, b.reset = true, limit, remaining, at
}

// low tells whether only the reserve is left, and for how long.
func (b *budget) low() (time.Duration, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()

	wait := b.reset.Sub(b.clock.Now())
	if !b.known || wait <= 0 || b.remaining > min(b.limit/reserveShare, maxReserve) {
		return 0, false
	}

	return wait, true
}

// spare refuses a call that can wait while only the reserve is left.
func (b *budget) spare(what string) error {
	wait, low := b.low()
	if !low {
		return nil
	}

	return &workload.Error{
		Kind: workload.RateLimited, Reason: ReasonRateLimited, After: wait,
		Message: what + " waits: GitHub's rate limit is almost spent, and what is left is kept for making and removing runners",
	}
}
