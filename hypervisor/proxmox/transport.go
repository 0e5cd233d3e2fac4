// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/utils/clock"

	"sync"

	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	getTries     = 3
	retryFirst   = 100 * time.Millisecond
	apiPrefix    = "/api2/json"
	nodesPrefix  = "/nodes/"
	idleConns    = 8
	idleLifetime = 60 * time.Second
)

// A node that did not answer is left alone for a while, which doubles from the first to
// the last of these: each call for it takes half a minute to fail, and a place.
const (
	silentFirst = 10 * time.Second
	silentLast  = time.Minute
)

// silentError says that a node is left alone, and for how long yet. Nothing was sent.
type silentError struct {
	node  string
	after time.Duration
	// cause is what the last call for it gave.
	cause error
}

// Error names the node.
func (e *silentError) Error() string {
	return fmt.Sprintf("node %s did not answer and is asked again in %s (%v)", e.node, e.after.Round(time.Second), e.cause)
}

// silence is since when, and for how long, a node is left alone.
type silence struct {
	until time.Time
	wait  time.Duration
	cause error
}

// transport is the way of each request: a place at its node, a few tries for reads, and
// answers other than 2xx as *APIError. It gives an answer as an error because the
// library above keeps nothing of a refusal but its status line, and of 401 and 403 not
// even that.
type transport struct {
	next    http.RoundTripper
	clock   clock.WithTicker
	jitter  func(time.Duration) time.Duration
	perNode int64

	mu    sync.Mutex
	nodes map[string]*semaphore.Weighted
	quiet map[string]silence
}

func newTransport(next http.RoundTripper, clk clock.WithTicker, jitter func(time.Duration) time.Duration, perNode int,
) *transport {
	return &transport{
		next: next, clock: clk, jitter: jitter, perNode: int64(max(perNode, 1)),
		nodes: map[string]*semaphore.Weighted{}, quiet: map[string]silence{},
	}
}

// RoundTrip makes the request; see transport.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	node := nodeOf(req)
	gate := t.gate(node)

	if err := gate.Acquire(req.Context(), 1); err != nil {
		return nil, err
	}
	defer gate.Release(1)

	if err := t.leftAlone(node); err != nil {
		return nil, err
	}

	res, err := t.try(req)
	t.heard(node, err)

	return res, err
}

// leftAlone refuses a call for a node that did not answer a moment ago. When its time is
// over, one call goes through, and those beside it wait for what it tells.
func (t *transport) leftAlone(node string) error {
	t.mu.Lock()
	defer t.mu.Unlock()

	q, ok := t.quiet[node]
	if !ok {
		return nil
	}

	now := t.clock.Now()
	if left := q.until.Sub(now); left > 0 {
		return &silentError{node: node, after: left, cause: q.cause}
	}

	q.until = now.Add(q.wait)
	t.quiet[node] = q

	return nil
}

// silent tells whether a node has not answered since its last call failed so.
func (t *transport) silent(node string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()

	_, ok := t.quiet[node]

	return ok
}

// heard notes whether a node answered.
func (t *transport) heard(node string, err error) {
	if node == "" {
		return
	}

	t.mu.Lock()
	defer t.mu.Unlock()

	answer, ok := errors.AsType[*APIError](err)

	switch {
	case ok && silent(answer.Status):
		wait := silentFirst
		if q, again := t.quiet[node]; again {
			wait = min(2*q.wait, silentLast) //nolint:mnd // it doubles
		}

		t.quiet[node] = silence{until: t.clock.Now().Add(t.jitter(wait)), wait: wait, cause: answer}
	case err == nil, ok:
		delete(t.quiet, node)
	}
}

// try makes the request, a read a few times.
func (t *transport) try(req *http.Request) (*http.Response, error) {
	wait := retryFirst

	for try := 1; ; try++ {
		res, err := t.once(req)
		if err == nil || try == getTries || !t.again(req, err) {
			return res, err
		}

		if retry.Pause(req.Context(), t.clock, t.jitter(wait)) != nil {
			return nil, err
		}

		wait *= 2
	}
}

func (t *transport) once(req *http.Request) (*http.Response, error) {
	res, err := t.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}

	if res.StatusCode >= http.StatusOK && res.StatusCode < http.StatusMultipleChoices {
		return res, nil
	}

	return nil, readAPIError(req, res)
}

// again tells whether a read may be tried again.
func (t *transport) again(req *http.Request, err error) bool {
	if req.Method != http.MethodGet || req.Context().Err() != nil {
		return false
	}

	if answer, ok := errors.AsType[*APIError](err); ok {
		return retryable(answer.Status)
	}

	return !untrusted(err)
}

func (t *transport) gate(node string) *semaphore.Weighted {
	t.mu.Lock()
	defer t.mu.Unlock()

	gate, ok := t.nodes[node]
	if !ok {
		gate = semaphore.NewWeighted(t.perNode)
		t.nodes[node] = gate
	}

	return gate
}

// apiPath is the request's path below /api2/json.
func apiPath(req *http.Request) string {
	_, path, ok := strings.Cut(req.URL.Path, apiPrefix)
	if !ok {
		return req.URL.Path
	}

	return path
}

// nodeOf gives the node that works on a request, or "" for the one that is connected.
func nodeOf(req *http.Request) string {
	rest, ok := strings.CutPrefix(apiPath(req), nodesPrefix)
	if !ok {
		return ""
	}

	node, _, _ := strings.Cut(rest, "/")

	return node
}

// Operation names a request for metrics, with placeholders for what varies: "POST
// /nodes/{node}/qemu/{vmid}/clone".
func Operation(req *http.Request) string {
	parts := strings.Split(strings.Trim(apiPath(req), "/"), "/")

	for i := 1; i < len(parts); i++ {
		switch parts[i-1] {
		case "nodes":
			parts[i] = "{node}"
		case "qemu":
			parts[i] = "{vmid}"
		case "storage":
			parts[i] = "{storage}"
		case "pools":
			parts[i] = "{poolid}"
		case "tasks":
			parts[i] = "{upid}"
		case "content":
			return req.Method + " /" + strings.Join(parts[:i], "/") + "/{volume}"
		}
	}

	return req.Method + " /" + strings.Join(parts, "/")
}
