// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guestapi

import (
	"cmp"
	"maps"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// Rate limits. Requests with a wrong code have a separate limit, so that a client that guesses codes cannot
// use up the limit of the machines.
const (
	// A machine may send a burst of claimBurst requests, then one request in each claimInterval.
	claimInterval = 5 * time.Second
	claimBurst    = 5
	// All machines together may send a burst of totalBurst requests, then totalPerSecond.
	totalPerSecond = 50
	totalBurst     = 200
	// All clients together may send a burst of wrongBurst requests with a wrong code, then wrongPerSecond.
	wrongPerSecond = 5
	wrongBurst     = 50
)

// Limits limits the rate of requests of machines. The zero value is ready to use. It is safe for concurrent
// use.
type Limits struct {
	// Burst is how many requests a machine may send at once. Default: 5.
	Burst int
	// PerMachineOnly turns off the limit for all machines together. It is for requests that are cheap, and
	// that all machines send at the same time.
	PerMachineOnly bool

	mu                 sync.Mutex
	total, wrongProofs *rate.Limiter
	claims             map[types.UID]*claimLimit
	sweptAt            time.Time
}

type claimLimit struct {
	limiter     *rate.Limiter
	lastRequest time.Time
}

// CheckRate counts a request with a correct proof. It returns a refusal if the machine, or all machines
// together, exceed their rate limit, and nil otherwise.
func (l *Limits) CheckRate(uid types.UID, now time.Time) *Refusal {
	return newLimitedRefusal(l.reserveFor(uid, now))
}

func newLimitedRefusal(wait time.Duration) *Refusal {
	if wait <= 0 {
		return nil
	}

	return &Refusal{
		Refusal: guest.Refusal{Message: "too many requests"},
		Status:  http.StatusTooManyRequests, RetryAfter: wait, Outcome: OutcomeLimited,
	}
}

// reserveFor counts a request against the limit of the machine and the limit of all machines together. It returns how long
// the machine has to wait if one of them is exceeded.
func (l *Limits) reserveFor(uid types.UID, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.forgetIdleMachines(now)

	limit, ok := l.claims[uid]
	if !ok {
		limit = &claimLimit{limiter: rate.NewLimiter(rate.Every(claimInterval), l.burst())}
		l.claims[uid] = limit
	}

	limit.lastRequest = now

	if wait := reserve(limit.limiter, now); wait > 0 || l.PerMachineOnly {
		return wait
	}

	if l.total == nil {
		l.total = rate.NewLimiter(totalPerSecond, totalBurst)
	}

	return reserve(l.total, now)
}

// checkGuessRate counts a request with a wrong proof. It returns a refusal if such requests exceed their
// rate limit, and nil otherwise.
func (l *Limits) checkGuessRate(now time.Time) *Refusal {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.wrongProofs == nil {
		l.wrongProofs = rate.NewLimiter(wrongPerSecond, wrongBurst)
	}

	return newLimitedRefusal(reserve(l.wrongProofs, now))
}

func (l *Limits) burst() int { return cmp.Or(l.Burst, claimBurst) }

// forgetIdleMachines drops the limiters of machines that have sent no request for long enough to have their
// full burst again.
func (l *Limits) forgetIdleMachines(now time.Time) {
	if l.claims == nil {
		l.claims = map[types.UID]*claimLimit{}
	}

	refill := time.Duration(l.burst()) * claimInterval
	if now.Sub(l.sweptAt) < refill {
		return
	}

	l.sweptAt = now
	maps.DeleteFunc(l.claims, func(_ types.UID, limit *claimLimit) bool { return now.Sub(limit.lastRequest) > refill })
}

// reserve takes a token of the limiter and returns 0. If the limiter has no token, reserve takes none and
// returns the time until the limiter has one.
func reserve(limiter *rate.Limiter, now time.Time) time.Duration {
	reservation := limiter.ReserveN(now, 1)

	wait := reservation.DelayFrom(now)
	if wait > 0 {
		reservation.CancelAt(now)
	}

	return wait
}
