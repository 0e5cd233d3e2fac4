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

// callClass is the priority of a call, from low to high. When few of the calls that GitHub allows are
// left, the classes with the lowest priority stop first.
type callClass int

const (
	// classPoll is for calls that search for lost webhooks: polls and redeliveries. They stop when
	// only the reserve is left.
	classPoll callClass = iota
	// classGetJob is for reading a single job whose state is in doubt. These calls slow down when
	// only the reserve is left.
	classGetJob
	// classRunner is for creating and listing runners.
	classRunner
	// classRemove is for removing runners. These calls stop only when no calls are left.
	classRemove
)

const (
	// The reserve is 1/reserveDivisor of the hour's calls, at most maxReserve. Classes other than
	// classPoll may use it.
	reserveDivisor = 10
	maxReserve     = 500
	// 1/removeDivisor of the hour's calls, at most maxRemoveReserve, are reserved for removing
	// runners.
	removeDivisor    = 100
	maxRemoveReserve = 50
	// slowInterval is the longest interval between two runner lists or between two reads of a job,
	// however few calls are left.
	slowInterval = time.Minute

	// Registrations are limited by a token bucket with registerBurst tokens that is refilled at
	// registerRate tokens a minute, so at most 170 registrations are made in any minute. GitHub
	// allows 900 points a minute at one endpoint, which are 180 registrations, and 1,500
	// registrations in 5 minutes in one scope (https://docs.github.com/actions/reference/limits).
	registerBurst = 50
	registerRate  = 120
	// maxRegistrationDelay bounds the delay that one error of allowRegistration requests.
	maxRegistrationDelay = time.Minute

	// readPoints and writePoints are the costs of calls ("Calculating points for the secondary rate
	// limit" in https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api).
	readPoints, writePoints = 1, 5
	// pointsWindowSeconds is how long points count, in seconds.
	pointsWindowSeconds = 60
)

// pointsLimit returns how many of the 900 points that GitHub allows per minute may be used before
// calls of the class have to wait. It returns false for calls that create, list or remove runners,
// because they never wait for points.
func (c callClass) pointsLimit() (maxPoints int, isBounded bool) {
	switch c {
	case classPoll:
		return 450, true
	case classGetJob:
		return 675, true
	case classRunner, classRemove:
		// They are never limited by points.
	}

	return 0, false
}

// budget tracks the calls that GitHub still allows for one credential. All providers with the
// credential share it. Servers without rate limits send no rate limit headers, and the budget then
// allows every call (https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api).
type budget struct {
	clock clock.PassiveClock

	mu sync.Mutex
	// isUnlimited means that the server sends no rate limit headers.
	isUnlimited bool
	// hasLimit means that a response had such headers. limit, remaining and resetAt are their newest values.
	hasLimit  bool
	limit     int
	remaining int
	resetAt   time.Time
	// pausedUntil is the time until which a secondary rate limit stops all calls except removals.
	pausedUntil time.Time
	// lastGetJob is when the last call of classGetJob was allowed while only the reserve was left.
	lastGetJob time.Time
	// pointsBySecond are the points of the last minute, by the second modulo 60. currentSecond is
	// the newest second in it.
	pointsBySecond [pointsWindowSeconds]int
	currentSecond  int64

	// claims are the deliveries for which a redelivery was requested.
	claims map[string]redeliveryClaim

	registrations *rate.Limiter
	// lastPromisedAt is the latest time that an error of allowRegistration named.
	lastPromisedAt time.Time
}

func newBudget(clk clock.PassiveClock) *budget {
	return &budget{clock: clk, registrations: rate.NewLimiter(rate.Limit(registerRate)/60, registerBurst)}
}

// observe stores the rate limit headers of a response. It ignores responses that count against
// another limit, which a header names. Runner registrations at the Actions service are an example.
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
		b.isUnlimited = b.isUnlimited || resp.StatusCode < http.StatusBadRequest && !b.hasLimit

		return
	}

	b.isUnlimited = false

	resetAt := time.Unix(reset, 0)
	// Responses can arrive out of order. Within one hour, the lowest number is the newest.
	if b.hasLimit && resetAt.Equal(b.resetAt) && remaining > b.remaining {
		return
	}

	if b.hasLimit && resetAt.Before(b.resetAt) {
		return
	}

	b.hasLimit, b.limit, b.remaining, b.resetAt = true, limit, remaining, resetAt
}

// advance sets currentSecond, and drops the points that are older than a minute. The caller holds the
// lock.
func (b *budget) advance(now time.Time) {
	current := now.Unix()
	for s := max(b.currentSecond+1, current-pointsWindowSeconds+1); s <= current; s++ {
		b.pointsBySecond[s%pointsWindowSeconds] = 0
	}

	b.currentSecond = max(b.currentSecond, current)
}

// pause stops all calls except removals for a time, as a secondary rate limit requires.
func (b *budget) pause(delay time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if until := b.clock.Now().Add(delay); until.After(b.pausedUntil) {
		b.pausedUntil = until
	}
}

// checkLow reports whether only the reserve is left, and for how long.
func (b *budget) checkLow() (duration time.Duration, isLow bool) {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.checkLowAt(b.clock.Now())
}

func (b *budget) checkLowAt(now time.Time) (duration time.Duration, isLow bool) {
	wait := b.resetAt.Sub(now)
	if !b.hasLimit || wait <= 0 || b.remaining > b.reservedCalls() {
		return 0, false
	}

	return wait, true
}

func (b *budget) reservedCalls() int { return min(b.limit/reserveDivisor, maxReserve) }

// allow records a call, or returns an error of kind RateLimited that contains the delay before the
// next attempt. The message of the error begins with action.
func (b *budget) allow(class callClass, method, action string) error {
	b.mu.Lock()
	defer b.mu.Unlock()

	now := b.clock.Now()

	if wait := b.pausedUntil.Sub(now); wait > 0 && class != classRemove {
		return newRateLimitError(wait, action+": GitHub requested a delay (secondary rate limit)")
	}

	cost := writePoints
	if method == http.MethodGet {
		cost = readPoints
	}

	b.advance(now)

	if wait, isLimited := b.checkMinute(class, cost); isLimited {
		return newRateLimitError(wait, action+": GitHub limits the calls per minute, and the remaining calls are reserved for runners")
	}

	if err := b.checkHour(now, class, action); err != nil {
		return err
	}

	b.pointsBySecond[b.currentSecond%pointsWindowSeconds] += cost

	return nil
}

// checkMinute reports whether the calls of the last minute leave too few points for a call, and
// returns the delay after which there are enough. The caller holds the lock.
func (b *budget) checkMinute(class callClass, cost int) (delay time.Duration, isExceeded bool) {
	maxPoints, isBounded := class.pointsLimit()
	if b.isUnlimited || !isBounded {
		return 0, false
	}

	excess := cost - maxPoints
	for _, points := range b.pointsBySecond {
		excess += points
	}

	if excess <= 0 {
		return 0, false
	}

	// The points of the oldest seconds expire first. Those of a second that is N seconds old expire in
	// pointsWindowSeconds-N seconds.
	age := pointsWindowSeconds - 1
	for ; age > 0 && excess > 0; age-- {
		excess -= b.pointsBySecond[(b.currentSecond-int64(age)+pointsWindowSeconds)%pointsWindowSeconds]
	}

	// The last second that has to expire is age+1 seconds old.
	return time.Duration(pointsWindowSeconds-1-age) * time.Second, true
}

// checkHour returns an error if the hour's calls leave none for the class. Otherwise it records the time of a
// call of classGetJob, which limits the next one. The caller holds the lock.
func (b *budget) checkHour(now time.Time, class callClass, action string) error {
	wait, isLow := b.checkLowAt(now)
	if !isLow {
		return nil
	}

	message := action + ": GitHub's rate limit is almost reached, " +
		"and the remaining calls are reserved for creating and removing runners"

	switch {
	case b.remaining <= 0:
		return newRateLimitError(wait, action+": GitHub's rate limit is exceeded")
	case class == classPoll:
		return newRateLimitError(wait, message)
	case class == classGetJob:
		interval := b.getJobInterval(wait)
		if delay := b.lastGetJob.Add(interval).Sub(now); delay > 0 {
			return newRateLimitError(delay, message)
		}

		b.lastGetJob = now
	case class == classRunner && b.remaining <= min(b.limit/removeDivisor, maxRemoveReserve):
		return newRateLimitError(wait, action+": GitHub's rate limit is almost reached, "+
			"and the remaining calls are reserved for removing runners")
	}

	return nil
}

// getJobInterval spreads calls of classGetJob over the rest of the hour. They may use half of the
// reserve. The caller holds the lock.
func (b *budget) getJobInterval(rest time.Duration) time.Duration {
	calls := b.remaining - b.reservedCalls()/2
	if calls <= 0 {
		return slowInterval
	}

	return min(rest/time.Duration(calls), slowInterval)
}

// allowRegistration records a runner registration, or returns an error of kind RateLimited. The
// errors contain different delays, so that the callers do not all retry at the same time.
func (b *budget) allowRegistration(action string) error {
	b.mu.Lock()
	defer b.mu.Unlock()

	now := b.clock.Now()
	if b.isUnlimited || b.registrations.AllowN(now, 1) {
		return nil
	}

	const interval = time.Minute / registerRate

	untilToken := time.Duration((1 - b.registrations.TokensAt(now)) * float64(interval))
	retryAt := now.Add(untilToken)

	if afterLast := b.lastPromisedAt.Add(interval); afterLast.After(retryAt) {
		retryAt = afterLast
	}

	if latest := now.Add(maxRegistrationDelay); retryAt.After(latest) {
		retryAt = latest
	}

	b.lastPromisedAt = retryAt

	return &workload.Error{
		Kind: workload.RateLimited, Reason: ReasonPaced, RetryAfter: retryAt.Sub(now),
		Message: action + ": GitHub limits the registrations of runners per minute",
	}
}

// redeliveryClaim records that a redelivery was requested.
type redeliveryClaim struct {
	claimedAt time.Time
	interval  time.Duration
}

// claimRedelivery claims a delivery. isFirst is true for the first caller within an interval. The interval
// doubles with each claim of the same delivery. release undoes the claim.
func (b *budget) claimRedelivery(key string) (release func(), isFirst bool) {
	b.mu.Lock()
	defer b.mu.Unlock()

	now := b.clock.Now()
	maps.DeleteFunc(b.claims, func(_ string, old redeliveryClaim) bool { return now.Sub(old.claimedAt) > deliveryRetention })

	previous, hasClaim := b.claims[key]
	if hasClaim && now.Sub(previous.claimedAt) < previous.interval {
		return nil, false
	}

	if b.claims == nil {
		b.claims = map[string]redeliveryClaim{}
	}

	b.claims[key] = redeliveryClaim{claimedAt: now, interval: max(2*previous.interval, minRedeliveryInterval)}

	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()

		b.claims[key] = previous
	}, true
}

func newRateLimitError(delay time.Duration, message string) *workload.Error {
	return &workload.Error{
		Kind: workload.RateLimited, Reason: ReasonRateLimited, RetryAfter: max(delay, time.Second), Message: message,
	}
}
