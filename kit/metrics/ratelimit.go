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
	// maxBudgets bounds the rate limits that are kept, over all systems and credentials.
	maxBudgets = 1024
	// maxResources bounds the resources of one system that are told apart.
	maxResources = 16
	// resetAfter is when a limit whose answer does not say when it is reset counts no more.
	resetAfter = time.Hour
	// aheadAtMost bounds the reset that is believed.
	aheadAtMost = 24 * time.Hour
)

// budget is the rate limit of one transport, which has one credential, for one resource.
type budget struct {
	transport        *transport
	system, resource string
}

// left is what a system last said of a rate limit.
type left struct {
	limit, remaining float64
	until            time.Time
}

// rateLimits keeps what systems say of their rate limits. Credentials have limits of their own:
// the one with the least left is shown, for it is the next to be refused.
type rateLimits struct {
	clock            clock.PassiveClock
	limit, remaining *prometheus.Desc

	mu   sync.Mutex
	seen map[budget]left
}

func newRateLimits(timer clock.PassiveClock) *rateLimits {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(Namespace, "external_rate_limit", name), help,
			[]string{"system", "resource"}, nil)
	}

	return &rateLimits{
		clock: timer, seen: map[budget]left{},
		limit: desc("calls", "How many calls a system allows the credential that has the fewest left, until the limit is reset."),
		remaining: desc("remaining_calls",
			"How many calls a system allows until its limit is reset, of the credential that has the fewest left."),
	}
}

// note reads an answer's headers: those of GitHub (X-RateLimit-*, with a resource), and those
// of GitLab and Buildkite (RateLimit-*, IETF draft).
func (r *rateLimits) note(from *transport, header http.Header) {
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
	key := budget{from, from.system, from.resources.Value(cmp.Or(header.Get(prefix+"Resource"), "all"))}

	r.mu.Lock()
	defer r.mu.Unlock()

	r.forget(now)

	if _, known := r.seen[key]; known || len(r.seen) < maxBudgets {
		r.seen[key] = left{limit, remaining, resetOf(header.Get(prefix+"Reset"), now)}
	}
}

// resetOf is when a limit is reset: the header has seconds from now, or since 1970.
func resetOf(text string, now time.Time) time.Time {
	seconds, err := strconv.ParseInt(text, 10, 64)

	at := now.Add(resetAfter)

	switch {
	case err != nil || seconds < 0:
	case time.Duration(seconds) < aheadAtMost/time.Second:
		at = now.Add(time.Duration(seconds) * time.Second)
	default:
		at = time.Unix(seconds, 0)
	}

	if at.After(now.Add(aheadAtMost)) {
		return now.Add(aheadAtMost)
	}

	return at
}

// forget drops what has been reset since.
func (r *rateLimits) forget(now time.Time) {
	for key, value := range r.seen {
		if !now.Before(value.until) {
			delete(r.seen, key)
		}
	}
}

// Describe gives the metrics' names.
func (r *rateLimits) Describe(ch chan<- *prometheus.Desc) {
	ch <- r.limit
	ch <- r.remaining
}

// Collect gives the least that is left of each system's resources.
func (r *rateLimits) Collect(ch chan<- prometheus.Metric) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.forget(r.clock.Now())

	least := map[budget]left{}

	for key, value := range r.seen {
		key.transport = nil
		if had, ok := least[key]; !ok || value.remaining < had.remaining {
			least[key] = value
		}
	}

	for key, value := range least {
		ch <- prometheus.MustNewConstMetric(r.limit, prometheus.GaugeValue, value.limit, key.system, key.resource)
		ch <- prometheus.MustNewConstMetric(r.remaining, prometheus.GaugeValue, value.remaining, key.system, key.resource)
	}
}
