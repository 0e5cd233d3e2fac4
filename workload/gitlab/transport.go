// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

// transport gives the chain a call goes through: guard, retry, the caller's wrapping
// (metrics, traces), the limit's look at the answer, the network. The network's part is
// a transport that providers share, so that they come and go without leaving connections
// behind.
func (p *provider) transport(config Config) http.RoundTripper {
	network := config.Network
	if network == nil {
		network = httpbound.Shared()
	}

	next := observing(network, p.limit)
	if config.Transport != nil {
		next = config.Transport(next)
	}

	return guarding(retry.Transport(next, p.clock, mayRepeat), p.base)
}

// Operation names a call of this package's for the metrics: its method and its path,
// without the names and numbers of objects. Of a path that GitLab's API does not have it
// is the method alone.
func Operation(r *http.Request) string {
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

// guarding refuses to carry credentials to any address but the configured one, wherever a
// redirect or a link may point: GitLab's own header is not among those that the HTTP
// client takes off.
func guarding(next http.RoundTripper, base string) http.RoundTripper {
	return retry.RoundTripper(func(r *http.Request) (*http.Response, error) {
		if !strings.HasPrefix(base+"/", r.URL.Scheme+"://"+r.URL.Host+"/") {
			if r.Body != nil {
				_ = r.Body.Close()
			}

			return nil, &strayError{to: r.URL.Scheme + "://" + r.URL.Host}
		}

		return next.RoundTrip(r)
	})
}

// observing tells the limit of every answer.
func observing(next http.RoundTripper, spent *limit) http.RoundTripper {
	return retry.RoundTripper(func(r *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(r)
		if err == nil {
			spent.observe(resp)
		}

		return resp, err
	})
}

// mayRepeat: reads, deletions and changes. A POST is never repeated: it may have made
// something.
func mayRepeat(r *http.Request) bool { return r.Method != http.MethodPost }

// limit remembers until when GitLab takes no more calls of these credentials. What can
// wait waits until then; making runners and removing them is tried all the same.
type limit struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	until time.Time
}

func (l *limit) observe(resp *http.Response) {
	if resp.StatusCode != http.StatusTooManyRequests {
		return
	}

	now := l.clock.Now()

	l.mu.Lock()
	defer l.mu.Unlock()

	l.until = now.Add(retryAfter(resp.Header, now))
}

// spare refuses a call that can wait.
func (l *limit) spare(what string) error {
	l.mu.Lock()
	defer l.mu.Unlock()

	if wait := l.until.Sub(l.clock.Now()); wait > 0 {
		return rateLimited(what, wait)
	}

	return nil
}
