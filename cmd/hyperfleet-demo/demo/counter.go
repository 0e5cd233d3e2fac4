// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"maps"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/hyperfleet/hyperfleet/sim/pve"
)

// counter counts calls to a Proxmox VE cluster by the call classes of pvesim.
type counter struct {
	mu     sync.Mutex
	calls  pve.CallCounts
	cloned int
}

func newCounter() *counter {
	return &counter{calls: pve.CallCounts{ByClass: map[pve.Class]int{}, ByVM: map[int]int{}}}
}

// vmPathPattern matches the path of a call for one VM and captures the ID of the VM.
var vmPathPattern = regexp.MustCompile(`/nodes/[^/]+/qemu/(\d+)`)

// classifyCall returns the class of a call, and the ID of the VM in its path or 0.
func classifyCall(method, path string) (pve.Class, int) {
	match := vmPathPattern.FindStringSubmatch(path)
	isWrite := method != http.MethodGet

	switch {
	case match != nil:
		id, _ := strconv.Atoi(match[1])

		return pve.ClassVM, id
	case strings.Contains(path, "/tasks"):
		return pve.ClassTask, 0
	case strings.Contains(path, "/storage") && isWrite:
		return pve.ClassStorage, 0
	case strings.Contains(path, "/storage"), strings.HasSuffix(path, "/cluster/resources"):
		return pve.ClassListing, 0
	default:
		return pve.ClassOther, 0
	}
}

func (c *counter) count(method, path string, status int) {
	class, id := classifyCall(method, path)

	c.mu.Lock()
	defer c.mu.Unlock()

	c.calls.Total++
	c.calls.ByClass[class]++

	if id != 0 {
		c.calls.ByVM[id]++
	}

	if status >= http.StatusBadRequest {
		c.calls.Errors++
	} else if method == http.MethodPost && strings.HasSuffix(path, "/clone") {
		c.cloned++
	}
}

func (c *counter) callCounts() pve.CallCounts {
	c.mu.Lock()
	defer c.mu.Unlock()

	out := c.calls
	out.ByClass, out.ByVM = maps.Clone(out.ByClass), maps.Clone(out.ByVM)

	return out
}

func (c *counter) cloneCount() int {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.cloned
}

// countRequests returns a handler that calls next and counts the request by the status of the response.
func (c *counter) countRequests(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		response := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(response, r)
		c.count(r.Method, r.URL.Path, response.status)
	})
}

// statusWriter records the status code of a response.
type statusWriter struct {
	http.ResponseWriter

	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap returns the wrapped writer for http.ResponseController.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
