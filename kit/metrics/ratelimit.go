// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

const (
	// maxRateLimits is the maximum number of rate limits that are stored, for all systems and credentials.
	maxRateLimits = 1024
	// maxResources is the maximum number of distinct resources of one system.
	maxResources = 16
	// defaultResetDelay is the time after which a rate limit expires if the response does not say when
	// it is reset.
	defaultResetDelay = time.Hour
	// maxResetDelay limits the reset time of a response. Later times are replaced by this limit.
	maxResetDelay = 24 * time.Hour
)

// rateLimitKey identifies the rate limit of one transport, which has one credential, for one resource.
type rateLimitKey struct {
	transport        *transport
	system, resource string
}

// rateLimit is the rate limit in the last response.
type rateLimit struct {
	limit, remaining float64
	resetAt          time.Time
}

// rateLimits collects the rate limits of external systems. Each credential has its own limit. The
// metrics show the credential with the fewest remaining calls, because its calls are rejected
// first.
type rateLimits struct {
	clock            clock.PassiveClock
	limit, remaining *prometheus.Desc

	mu    sync.Mutex
	byKey map[rateLimitKey]rateLimit
}

func newRateLimits(clk clock.PassiveClock) *rateLimits {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(Namespace, "external_rate_limit", name), help,
			[]string{"system", "resource"}, nil)
	}

	return &rateLimits{
		clock: clk, byKey: map[rateLimitKey]rateLimit{},
		limit: desc("calls",
			"Number of calls until the limit is reset that a system allows for the credential with the fewest remaining calls."),
		remaining: desc("remaining_calls",
			"Number of remaining calls until the limit is reset, of the credential with the fewest remaining calls."),
	}
}

// record stores the rate limit from the headers of a response: X-RateLimit-* of GitHub, with a resource,
// or RateLimit-* of GitLab and Buildkite (IETF draft).
func (r *rateLimits) record(from *transport, header http.Header) {
	prefix := "X-RateLimit-"
	if header.Get(prefix+"Remaining") == "" {
		prefix = "RateLimit-"
	}

	remaining, err := strconv.ParseFloat(header.Get(prefix+"Remaining"), 64)
	if err != nil || remaining < 0 {
		return
	}

	limit, err := strconv.ParseFloat(header.Get(prefix+"Limit"), 64)
	if err != nil || limit < remaining {
		limit = remaining
	}

	now := r.clock.Now()
	key := rateLimitKey{from, from.system, from.resources.Limit(cmp.Or(header.Get(prefix+"Resource"), "all"))}

	r.mu.Lock()
	defer r.mu.Unlock()

	r.dropExpired(now)

	if _, exists := r.byKey[key]; exists || len(r.byKey) < maxRateLimits {
		r.byKey[key] = rateLimit{limit, remaining, parseReset(header.Get(prefix+"Reset"), now)}
	}
}

// parseReset returns the time at which a limit is reset. The header contains the seconds from now,
// or the seconds since 1970. The result is at most maxResetDelay after now.
func parseReset(text string, now time.Time) time.Time {
	seconds, err := strconv.ParseInt(text, 10, 64)

	reset := now.Add(defaultResetDelay)

	switch {
	case err != nil || seconds < 0: // the default
	case time.Duration(seconds) < maxResetDelay/time.Second:
		reset = now.Add(time.Duration(seconds) * time.Second)
	default:
		reset = time.Unix(seconds, 0)
	}

	if reset.After(now.Add(maxResetDelay)) {
		return now.Add(maxResetDelay)
	}

	return reset
}

// dropExpired deletes the rate limits that have been reset.
func (r *rateLimits) dropExpired(now time.Time) {
	for key, value := range r.byKey {
		if !now.Before(value.resetAt) {
			delete(r.byKey, key)
		}
	}
}

// Describe sends the descriptions of the metrics.
func (r *rateLimits) Describe(ch chan<- *prometheus.Desc) {
	ch <- r.limit
	ch <- r.remaining
}

// Collect sends, for each resource of each system, the rate limit with the fewest remaining calls.
func (r *rateLimits) Collect(ch chan<- prometheus.Metric) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.dropExpired(r.clock.Now())

	lowest := map[rateLimitKey]rateLimit{}

	for key, value := range r.byKey {
		key.transport = nil
		if current, ok := lowest[key]; !ok || value.remaining < current.remaining {
			lowest[key] = value
		}
	}

	for key, value := range lowest {
		ch <- prometheus.MustNewConstMetric(r.limit, prometheus.GaugeValue, value.limit, key.system, key.resource)
		ch <- prometheus.MustNewConstMetric(r.remaining, prometheus.GaugeValue, value.remaining, key.system, key.resource)
	}
}
