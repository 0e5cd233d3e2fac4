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

// counter counts calls to a Proxmox VE, by the simulator's classes.
type counter struct {
	mu     sync.Mutex
	calls  pve.CallCounts
	cloned int
}

func newCounter() *counter {
	return &counter{calls: pve.CallCounts{ByClass: map[pve.Class]int{}, ByVM: map[int]int{}}}
}

// vmOfPath is the id in a call that concerns one VM.
var vmOfPath = regexp.MustCompile(`/nodes/[^/]+/qemu/(\d+)`)

// classOf says what a call costs the cluster, and which VM it concerns.
func classOf(method, path string) (pve.Class, int) {
	found := vmOfPath.FindStringSubmatch(path)
	changes := method != http.MethodGet

	switch {
	case found != nil:
		id, _ := strconv.Atoi(found[1])

		return pve.ClassVM, id
	case strings.Contains(path, "/tasks"):
		return pve.ClassTask, 0
	case strings.Contains(path, "/storage") && changes:
		return pve.ClassStorage, 0
	case strings.Contains(path, "/storage"), strings.HasSuffix(path, "/cluster/resources"):
		return pve.ClassListing, 0
	default:
		return pve.ClassOther, 0
	}
}

func (c *counter) count(method, path string, status int) {
	class, id := classOf(method, path)

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

func (c *counter) counts() pve.CallCounts {
	c.mu.Lock()
	defer c.mu.Unlock()

	out := c.calls
	out.ByClass, out.ByVM = maps.Clone(out.ByClass), maps.Clone(out.ByVM)

	return out
}

func (c *counter) clones() int {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.cloned
}

// handler counts what next answers.
func (c *counter) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(answer, r)
		c.count(r.Method, r.URL.Path, answer.status)
	})
}

type statusWriter struct {
	http.ResponseWriter

	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach the writer itself.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
