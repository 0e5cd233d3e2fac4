// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

// transport returns the chain of round trippers for calls, from the outside: the server check
// (restrictServer), retries, the caller's wrapper (metrics, traces), the rate limit's observer, and the
// network transport. All providers share the network transport, so that a closed provider leaves no
// connections behind.
func (p *provider) transport(config Config) http.RoundTripper {
	network := config.BaseTransport
	if network == nil {
		network = bounds.SharedTransport()
	}

	next := observeResponses(network, p.limit)
	if config.WrapTransport != nil {
		next = config.WrapTransport(next)
	}

	return restrictServer(retry.NewTransport(next, p.clock, isRepeatable), p.base)
}

// OperationName returns the name of a call for the metrics: the method and the path, with the names
// and numbers of objects replaced by {}. For a path outside of GitLab's API, it returns the method
// only.
func OperationName(r *http.Request) string {
	_, path, ok := strings.Cut(r.URL.EscapedPath(), "/api/v4/")
	if !ok {
		return r.Method
	}

	parts := strings.Split(path, "/")
	for i := 1; i < len(parts); i++ {
		switch parts[i-1] {
		case "projects", "groups", "runners", "jobs":
			if parts[i] != "all" {
				parts[i] = "{}"
			}
		}
	}

	return r.Method + " /" + strings.Join(parts, "/")
}

// restrictServer returns a round tripper that rejects requests to any server other than base,
// because a redirect or a link could lead elsewhere. The HTTP client does not remove GitLab's token
// header on redirects.
func restrictServer(next http.RoundTripper, base string) http.RoundTripper {
	return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		if !strings.HasPrefix(base+"/", r.URL.Scheme+"://"+r.URL.Host+"/") {
			if r.Body != nil {
				_ = r.Body.Close()
			}

			return nil, &redirectError{server: r.URL.Scheme + "://" + r.URL.Host}
		}

		return next.RoundTrip(r)
	})
}

// observeResponses returns a round tripper that passes every response to the rate limit.
func observeResponses(next http.RoundTripper, limit *rateLimit) http.RoundTripper {
	return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(r)
		if err == nil {
			limit.observe(resp)
		}

		return resp, err
	})
}

// isRepeatable reports whether a request can be retried. A POST cannot, because the failed attempt
// may have created an object.
func isRepeatable(r *http.Request) bool { return r.Method != http.MethodPost }

// rateLimit stores the time until which GitLab rejects the calls of these credentials. Until then, calls that
// can wait are not made. Calls that create or remove runners are made anyway.
type rateLimit struct {
	clock clock.PassiveClock

	mu            sync.Mutex
	exceededUntil time.Time
}

// observe stores the delay that a response with status 429 requests. It ignores all other responses.
func (l *rateLimit) observe(resp *http.Response) {
	if resp.StatusCode != http.StatusTooManyRequests {
		return
	}

	now := l.clock.Now()

	l.mu.Lock()
	defer l.mu.Unlock()

	l.exceededUntil = now.Add(parseRetryAfter(resp.Header, now))
}

// checkAllowed returns an error of kind RateLimited while the rate limit is exceeded. Calls that can wait need it.
func (l *rateLimit) checkAllowed(action string) error {
	l.mu.Lock()
	defer l.mu.Unlock()

	if wait := l.exceededUntil.Sub(l.clock.Now()); wait > 0 {
		return newRateLimitError(action, wait)
	}

	return nil
}
