// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"maps"
	"slices"
	"sync"
)

// CallHooks is a set of functions that run at each call, for Harness.OnCall. The zero value is an
// empty set. It is safe for concurrent use.
type CallHooks struct {
	mu    sync.Mutex
	next  int
	hooks map[int]func(Boundary)
}

// Add adds f. remove removes it from the set.
func (c *CallHooks) Add(f func(Boundary)) (remove func()) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.hooks == nil {
		c.hooks = map[int]func(Boundary){}
	}

	c.next++
	id := c.next
	c.hooks[id] = f

	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()

		delete(c.hooks, id)
	}
}

// Run calls each function of the set with the boundary.
func (c *CallHooks) Run(b Boundary) {
	c.mu.Lock()
	hooks := slices.Collect(maps.Values(c.hooks))
	c.mu.Unlock()

	for _, f := range hooks {
		f(b)
	}
}
