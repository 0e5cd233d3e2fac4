// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	getAttempts       = 3
	initialRetryDelay = 100 * time.Millisecond
	apiPrefix         = "/api2/json"
	nodesPrefix       = "/nodes/"
	idleConns         = 8
	idleLifetime      = 60 * time.Second
)

// If a node does not respond, the transport sends no requests to that node for a back-off delay. Each
// request to an unresponsive node takes half a minute to fail and occupies a call slot of the node. The
// delay starts at initialNodeBackoff and doubles up to maxNodeBackoff.
const (
	initialNodeBackoff = 10 * time.Second
	maxNodeBackoff     = time.Minute
)

// nodeBackoffError is returned without sending a request while a node is in back-off. It holds the time
// until the next request.
type nodeBackoffError struct {
	node       string
	retryAfter time.Duration
	// cause is the error of the latest request to the node.
	cause error
}

// Error returns a text that names the node.
func (e *nodeBackoffError) Error() string {
	return fmt.Sprintf("node %s did not respond, the next request is sent in %s (%v)",
		e.node, e.retryAfter.Round(time.Second), e.cause)
}

// nodeBackoff is the back-off state of a node.
type nodeBackoff struct {
	until time.Time
	delay time.Duration
	cause error
}

// transport is the http.RoundTripper of all requests. It limits the parallel requests per node, retries GET
// requests, applies the back-off of unresponsive nodes, and returns each response other than 2xx as an
// *APIError. The transport returns these responses as errors because the library keeps only the status line
// of a failed response, and not even that of 401 and 403.
type transport struct {
	next         http.RoundTripper
	clock        clock.WithTicker
	callsPerNode int64

	mu        sync.Mutex
	callSlots map[string]*semaphore.Weighted
	backoffs  map[string]nodeBackoff
}

func newTransport(next http.RoundTripper, clk clock.WithTicker, perNode int) *transport {
	return &transport{
		next: next, clock: clk, callsPerNode: int64(max(perNode, 1)),
		callSlots: map[string]*semaphore.Weighted{}, backoffs: map[string]nodeBackoff{},
	}
}

// jitter returns a random duration between 0.5 and 1.5 times d.
func jitter(d time.Duration) time.Duration { return wait.Jitter(d/2, 2) }

// RoundTrip sends the request; see transport.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	node := targetNode(req)
	slots := t.slotsOfNode(node)

	if err := slots.Acquire(req.Context(), 1); err != nil {
		return nil, err
	}
	defer slots.Release(1)

	if err := t.checkBackoff(node); err != nil {
		return nil, err
	}

	res, err := t.sendWithRetries(req)
	t.recordResponse(node, err)

	return res, err
}

// checkBackoff returns a nodeBackoffError while the node is in back-off. When the delay is over, one
// request goes through as a probe. Parallel requests are still refused until the probe has a result.
func (t *transport) checkBackoff(node string) error {
	t.mu.Lock()
	defer t.mu.Unlock()

	backoff, ok := t.backoffs[node]
	if !ok {
		return nil
	}

	now := t.clock.Now()
	if remaining := backoff.until.Sub(now); remaining > 0 {
		return &nodeBackoffError{node: node, retryAfter: remaining, cause: backoff.cause}
	}

	backoff.until = now.Add(backoff.delay)
	t.backoffs[node] = backoff

	return nil
}

// isUnresponsive reports whether the latest request to a node failed because the node did not respond.
func (t *transport) isUnresponsive(node string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()

	_, ok := t.backoffs[node]

	return ok
}

// recordResponse starts, extends or ends the back-off of a node after a request. An error that is not an
// API response does not change the back-off.
func (t *transport) recordResponse(node string, err error) {
	if node == "" {
		return
	}

	t.mu.Lock()
	defer t.mu.Unlock()

	apiErr, ok := errors.AsType[*APIError](err)

	switch {
	case ok && isUnresponsiveStatus(apiErr.Status):
		delay := initialNodeBackoff
		if backoff, isRepeated := t.backoffs[node]; isRepeated {
			delay = min(2*backoff.delay, maxNodeBackoff) //nolint:mnd // the delay doubles
		}

		t.backoffs[node] = nodeBackoff{until: t.clock.Now().Add(jitter(delay)), delay: delay, cause: apiErr}
	case err == nil, ok:
		delete(t.backoffs, node)
	}
}

// sendWithRetries sends the request. A GET request is sent up to getAttempts times.
func (t *transport) sendWithRetries(req *http.Request) (*http.Response, error) {
	delay := initialRetryDelay

	for attempt := 1; ; attempt++ {
		res, err := t.send(req)
		if err == nil || attempt == getAttempts || !t.shouldRetry(req, err) {
			return res, err
		}

		if retry.Sleep(req.Context(), t.clock, jitter(delay)) != nil {
			return nil, err
		}

		delay *= 2
	}
}

func (t *transport) send(req *http.Request) (*http.Response, error) {
	res, err := t.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}

	if res.StatusCode >= http.StatusOK && res.StatusCode < http.StatusMultipleChoices {
		return res, nil
	}

	return nil, readAPIError(req, res)
}

// shouldRetry reports whether a failed request can be sent again. Only GET requests are retried.
func (t *transport) shouldRetry(req *http.Request, err error) bool {
	if req.Method != http.MethodGet || req.Context().Err() != nil {
		return false
	}

	if apiErr, ok := errors.AsType[*APIError](err); ok {
		return isRetryableStatus(apiErr.Status)
	}

	return !hypervisor.IsUntrusted(err)
}

func (t *transport) slotsOfNode(node string) *semaphore.Weighted {
	t.mu.Lock()
	defer t.mu.Unlock()

	slots, ok := t.callSlots[node]
	if !ok {
		slots = semaphore.NewWeighted(t.callsPerNode)
		t.callSlots[node] = slots
	}

	return slots
}

// apiPath returns the path of the request below /api2/json.
func apiPath(req *http.Request) string {
	_, path, ok := strings.Cut(req.URL.Path, apiPrefix)
	if !ok {
		return req.URL.Path
	}

	return path
}

// targetNode returns the node that processes a request, or "" if the connected node processes it.
func targetNode(req *http.Request) string {
	rest, ok := strings.CutPrefix(apiPath(req), nodesPrefix)
	if !ok {
		return ""
	}

	node, _, _ := strings.Cut(rest, "/")

	return node
}

// Operation returns the metric label of a request: its method and path, with placeholders for the variable
// parts, such as "POST /nodes/{node}/qemu/{vmid}/clone".
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
