// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"maps"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/workload"
)

// class says how urgent a call is. While little is left of what GitHub allows, the least
// urgent calls stop first.
type class int

const (
	// spare calls look for what may have been missed: polls and redeliveries. They stop
	// when only the reserve is left.
	spare class = iota
	// repair calls ask for one thing that is in doubt: a job. They slow down when only
	// the reserve is left.
	repair
	// work makes runners, and lists them.
	work
	// remove takes runners away. It stops only when nothing at all is left.
	remove
)

const (
	// reserveShare of the hour's calls, and at most maxReserve of them, are kept for what
	// must not wait.
	reserveShare = 10
	maxReserve   = 500
	// removeShare of the hour's calls, and at most maxRemove of them, are for removing
	// runners alone.
	removeShare = 100
	maxRemove   = 50
	// slowest is how often runners are listed and jobs are asked for at least, however
	// little is left.
	slowest = time.Minute

	// Registrations have a bucket of burst, filled at rate a minute: at most 170 in any
	// minute. GitHub allows 900 points a minute at one endpoint, which are 180
	// registrations, and 1,500 registrations in 5 minutes to one scope
	// (https://docs.github.com/actions/reference/limits).
	registerBurst = 50
	registerRate  = 120
	// longestPromise bounds for how long a registration is put off at a time.
	longestPromise = time.Minute

	// costs of calls in points ("Calculating points for the secondary rate limit" in
	// https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api).
	readPoints, writePoints = 1, 5
	// pointsWindow is the time that points count for, in pieces of a second.
	pointsWindow = 60
)

// points gives how many points of a minute, of the 900 that GitHub allows, may be spent
// before calls of the class wait. What makes and removes runners never waits for them.
func (c class) points() (int, bool) {
	switch c {
	case spare:
		return 450, true
	case repair:
		return 675, true
	case work, remove:
	}

	return 0, false
}

// budget follows what GitHub still allows to one credential. All providers of the
// credential share it. Servers without limits send no word of them; nothing is held back
// there (https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api).
type budget struct {
	clock clock.PassiveClock

	mu        sync.Mutex
	unlimited bool
	known     bool
	limit     int
	remaining int
	reset     time.Time
	// paused is until when a secondary limit stops all but removals.
	paused time.Time
	// repaired is when a repair was last let through.
	repaired time.Time
	// spent are the points of the last minute, by the second modulo 60, as of second.
	spent  [pointsWindow]int
	second int64

	// claims are the deliveries that were asked for.
	claims map[string]claimed

	registrations *rate.Limiter
	// promised is the latest time that anybody was told to register at.
	promised time.Time
}

func newBudget(clk clock.PassiveClock) *budget {
	return &budget{clock: clk, registrations: rate.NewLimiter(rate.Limit(registerRate)/60, registerBurst)}
}

// observe reads an answer's headers. Registrations at the runner service count against a
// limit of their own, which the header names.
func (b *budget) observe(resp *http.Response) {
	header := resp.Header
	if resource := header.Get("X-Ratelimit-Resource"); resource != "" && resource != "core" {
		return
	}

	limit, errLimit := strconv.Atoi(header.Get("X-Ratelimit-Limit"))
	remaining, errRemaining := strconv.Atoi(header.Get("X-Ratelimit-Remaining"))
	reset, errReset := strconv.ParseInt(header.Get("X-Ratelimit-Reset"), 10, 64)

	b.mu.Lock()
	defer b.mu.Unlock()

	if errLimit != nil || errRemaining != nil || errReset != nil {
		b.unlimited = b.unlimited || resp.StatusCode < http.StatusBadRequest && !b.known

		return
	}

	b.unlimited = false

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

// forget drops the points that are older than a minute. The lock is held.
func (b *budget) forget(now time.Time) {
	at := now.Unix()
	for s := max(b.second+1, at-pointsWindow+1); s <= at; s++ {
		b.spent[s%pointsWindow] = 0
	}

	b.second = max(b.second, at)
}

// pause stops all but removals, as a secondary limit asks for.
func (b *budget) pause(after time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if until := b.clock.Now().Add(after); until.After(b.paused) {
		b.paused = until
	}
}

// low tells whether only the reserve is left, and for how long.
func (b *budget) low() (time.Duration, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.lowAt(b.clock.Now())
}

func (b *budget) lowAt(now time.Time) (time.Duration, bool) {
	wait := b.reset.Sub(now)
	if !b.known || wait <= 0 || b.remaining > b.reserve() {
		return 0, false
	}

	return wait, true
}

func (b *budget) reserve() int { return min(b.limit/reserveShare, maxReserve) }

// allow counts a call, or refuses one that has to wait, with the time after which it is
// worth another try. The error is of kind RateLimited and begins with what.
func (b *budget) allow(urgency class, method, what string) error {
	b.mu.Lock()
	defer b.mu.Unlock()

	now := b.clock.Now()

	if wait := b.paused.Sub(now); wait > 0 && urgency != remove {
		return limitedError(wait, what+" waits: GitHub asked for a pause (secondary rate limit)")
	}

	cost := writePoints
	if method == http.MethodGet {
		cost = readPoints
	}

	b.forget(now)

	if wait, ok := b.crowded(urgency, cost); ok {
		return limitedError(wait, what+" waits: GitHub allows only so many calls a minute, and what is left is kept for runners")
	}

	if err := b.withinHour(now, urgency, what); err != nil {
		return err
	}

	b.spent[b.second%pointsWindow] += cost

	return nil
}

// crowded tells whether the last minute's calls leave no room for such a call, and until
// when. The lock is held.
func (b *budget) crowded(urgency class, cost int) (time.Duration, bool) {
	most, bounded := urgency.points()
	if b.unlimited || !bounded {
		return 0, false
	}

	over := cost - most
	for _, points := range b.spent {
		over += points
	}

	if over <= 0 {
		return 0, false
	}

	// The oldest seconds end first.
	age := pointsWindow - 1
	for ; age > 0 && over > 0; age-- {
		over -= b.spent[(b.second-int64(age)+pointsWindow)%pointsWindow]
	}

	return time.Duration(pointsWindow-1-age) * time.Second, true
}

// withinHour looks at the hour's calls. The lock is held.
func (b *budget) withinHour(now time.Time, urgency class, what string) error {
	wait, low := b.lowAt(now)
	if !low {
		return nil
	}

	kept := what + " waits: GitHub's rate limit is almost spent, and what is left is kept for making and removing runners"

	switch {
	case b.remaining <= 0:
		return limitedError(wait, what+" waits: GitHub's rate limit is spent")
	case urgency == spare:
		return limitedError(wait, kept)
	case urgency == repair:
		pause := b.repairEvery(wait)
		if left := b.repaired.Add(pause).Sub(now); left > 0 {
			return limitedError(left, kept)
		}

		b.repaired = now
	case urgency == work && b.remaining <= min(b.limit/removeShare, maxRemove):
		return limitedError(wait, what+" waits: GitHub's rate limit is almost spent, and what is left is kept for removing runners")
	}

	return nil
}

// repairEvery spreads repairs over the rest of the hour: half of the reserve is for them.
// The lock is held.
func (b *budget) repairEvery(rest time.Duration) time.Duration {
	calls := b.remaining - b.reserve()/2
	if calls <= 0 {
		return slowest
	}

	return min(rest/time.Duration(calls), slowest)
}

// register takes a place among the minute's registrations. Callers who have to wait are
// told different times, so that they don't all come back at once.
func (b *budget) register(what string) error {
	b.mu.Lock()
	defer b.mu.Unlock()

	now := b.clock.Now()
	if b.unlimited || b.registrations.AllowN(now, 1) {
		return nil
	}

	const interval = time.Minute / registerRate

	first := time.Duration((1 - b.registrations.TokensAt(now)) * float64(interval))
	slot := now.Add(first)

	if next := b.promised.Add(interval); next.After(slot) {
		slot = next
	}

	if latest := now.Add(longestPromise); slot.After(latest) {
		slot = latest
	}

	b.promised = slot

	return &workload.Error{
		Kind: workload.RateLimited, Reason: ReasonPaced, After: slot.Sub(now),
		Message: what + " waits its turn: GitHub takes only so many registrations of runners a minute",
	}
}

// claimed is a delivery that was asked for.
type claimed struct {
	at    time.Time
	pause time.Duration
}

// claim gives a delivery to the first who asks for it within a while, which doubles each
// time. Release gives it back.
func (b *budget) claim(key string) (release func(), first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()

	now := b.clock.Now()
	maps.DeleteFunc(b.claims, func(_ string, old claimed) bool { return now.Sub(old.at) > keptFor })

	before, again := b.claims[key]
	if again && now.Sub(before.at) < before.pause {
		return nil, false
	}

	if b.claims == nil {
		b.claims = map[string]claimed{}
	}

	b.claims[key] = claimed{at: now, pause: max(2*before.pause, askedFor)}

	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()

		b.claims[key] = before
	}, true
}

func limitedError(after time.Duration, message string) *workload.Error {
	return &workload.Error{
		Kind: workload.RateLimited, Reason: ReasonRateLimited, After: max(after, time.Second), Message: message,
	}
}
