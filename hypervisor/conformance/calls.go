// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"maps"
	"slices"
	"sync"
)

// Calls are those who want to know of each call, for a Harness's OnCall. The zero value has none.
type Calls struct {
	mu   sync.Mutex
	next int
	all  map[int]func(Boundary)
}

// On has f run for each call until it is removed.
func (c *Calls) On(f func(Boundary)) (remove func()) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.all == nil {
		c.all = map[int]func(Boundary){}
	}

	c.next++
	mine := c.next
	c.all[mine] = f

	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()

		delete(c.all, mine)
	}
}

// Tell tells them of a call.
func (c *Calls) Tell(b Boundary) {
	c.mu.Lock()
	all := slices.Collect(maps.Values(c.all))
	c.mu.Unlock()

	for _, f := range all {
		f(b)
	}
}
