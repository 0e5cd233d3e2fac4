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

// How often is answered. Requests with a wrong code have a limit of their own, so that
// whoever guesses codes keeps no machine from its credential.
const (
	// claimEvery is how often a machine may ask, after claimBurst times at once.
	claimEvery = 5 * time.Second
	claimBurst = 5
	// allPerSecond is how often all machines together may ask.
	allPerSecond = 50
	allBurst     = 200
	// wrongPerSecond is how often a wrong code is looked into.
	wrongPerSecond = 5
	wrongBurst     = 50
)

// Limits hold back who asks too often. The zero value is ready to use, by any number of
// goroutines.
type Limits struct {
	// Burst is how often a machine may ask at once. Default: 5.
	Burst int
	// Each bounds each machine alone: what one asks costs little, and all ask at once.
	Each bool

	mu         sync.Mutex
	all, wrong *rate.Limiter
	claims     map[types.UID]*claimLimit
	swept      time.Time
}

type claimLimit struct {
	limiter *rate.Limiter
	last    time.Time
}

// Genuine refuses a machine with the right code that asks too often; nil lets it go on.
func (l *Limits) Genuine(uid types.UID, now time.Time) *Refusal {
	return limited(l.genuine(uid, now))
}

func limited(wait time.Duration) *Refusal {
	if wait <= 0 {
		return nil
	}

	return &Refusal{
		Refusal: guest.Refusal{Message: "too many requests"},
		Status:  http.StatusTooManyRequests, After: wait, Outcome: OutcomeLimited,
	}
}

func (l *Limits) genuine(uid types.UID, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.sweep(now)

	one, ok := l.claims[uid]
	if !ok {
		one = &claimLimit{limiter: rate.NewLimiter(rate.Every(claimEvery), l.burst())}
		l.claims[uid] = one
	}

	one.last = now

	if wait := take(one.limiter, now); wait > 0 || l.Each {
		return wait
	}

	if l.all == nil {
		l.all = rate.NewLimiter(allPerSecond, allBurst)
	}

	return take(l.all, now)
}

// guess refuses whoever has a wrong proof and asks too often; nil where they are told that it
// is wrong.
func (l *Limits) guess(now time.Time) *Refusal {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.wrong == nil {
		l.wrong = rate.NewLimiter(wrongPerSecond, wrongBurst)
	}

	return limited(take(l.wrong, now))
}

func (l *Limits) burst() int { return cmp.Or(l.Burst, claimBurst) }

// sweep forgets machines that have not asked for long.
func (l *Limits) sweep(now time.Time) {
	if l.claims == nil {
		l.claims = map[types.UID]*claimLimit{}
	}

	// By then the limit is full again.
	forget := time.Duration(l.burst()) * claimEvery
	if now.Sub(l.swept) < forget {
		return
	}

	l.swept = now
	maps.DeleteFunc(l.claims, func(_ types.UID, one *claimLimit) bool { return now.Sub(one.last) > forget })
}

// take takes one of what the limiter allows, or tells how long until there is one.
func take(limiter *rate.Limiter, now time.Time) time.Duration {
	reservation := limiter.ReserveN(now, 1)

	wait := reservation.DelayFrom(now)
	if wait > 0 {
		reservation.CancelAt(now)
	}

	return wait
}
