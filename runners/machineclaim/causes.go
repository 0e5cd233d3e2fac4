// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

const (
	// openAfter so many failures in a row a cause is in trouble: the claims that it has fail
	// take turns from then on.
	openAfter = 3
	// turnEvery is how often one of them has its turn.
	turnEvery = time.Second
	// forgetAfter so long without a failure a cause is forgotten.
	forgetAfter = 10 * time.Minute
)

// causes have the claims that one cause has fail try in turns, once a second together, so
// that a node, a hypervisor or a CI platform in trouble is not asked once per claim. What has
// worked once is in no trouble any more. It is kept in memory: after a restart it takes
// openAfter failures to know again. The zero value is ready to use.
type causes struct {
	mu   sync.Mutex
	open map[string]*cause
	// tried is what was put on record of claims last: a pass may have a copy of before, and a
	// write may be refused.
	tried map[types.NamespacedName]tries
}

// tries of one claim.
type tries struct {
	backoff  v1alpha1.Backoff
	attempts int32
	// ended says that the claim has failed, for reason and with message.
	ended           bool
	reason, message string
}

type cause struct {
	failures int
	last     string
	at       time.Time
	// next is when the next turn may be, and turns are those of the claims that wait.
	next  time.Time
	taken time.Time
	turns map[types.NamespacedName]time.Time
}

// failed notes a failure of a claim, and gives how long it waits for its next turn.
func (c *causes) failed(name string, claim types.NamespacedName, now time.Time, words string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.open == nil {
		c.open = map[string]*cause{}
	}

	known := c.open[name]
	if known == nil {
		known = &cause{turns: map[types.NamespacedName]time.Time{}}
		c.open[name] = known
	}

	known.failures++
	known.last, known.at = words, now
	delete(known.turns, claim)

	if known.failures < openAfter {
		return 0
	}

	return known.turn(claim, now).Sub(now)
}

// turn gives a claim's turn, a new one where it has none.
func (c *cause) turn(claim types.NamespacedName, now time.Time) time.Time {
	if at, ok := c.turns[claim]; ok {
		return at
	}

	if c.next.Before(now) {
		c.next = now
	}

	c.next = c.next.Add(turnEvery)
	c.turns[claim] = c.next

	return c.next
}

// admit gives how long a claim waits for its turn, 0 where it is its turn or there is no
// trouble, and what the last claim failed with.
func (c *causes) admit(name string, claim types.NamespacedName, now time.Time) (time.Duration, string) {
	c.mu.Lock()
	defer c.mu.Unlock()

	known := c.open[name]
	if known == nil || known.failures < openAfter {
		return 0, ""
	}

	left := known.turn(claim, now).Sub(now)
	if left <= 0 {
		// Whoever comes late to its turn may come in another's.
		if left = known.taken.Add(turnEvery).Sub(now); left <= 0 {
			known.taken = now
			delete(known.turns, claim)

			return 0, ""
		}

		known.turns[claim] = now.Add(left)
	}

	return left, known.last
}

// note keeps what is put on record of a claim.
func (c *causes) note(claim types.NamespacedName, of tries) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.tried == nil {
		c.tried = map[types.NamespacedName]tries{}
	}

	c.tried[claim] = of
}

// noted gives what was kept of a claim.
func (c *causes) noted(claim types.NamespacedName) (tries, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	of, ok := c.tried[claim]

	return of, ok
}

// drop forgets what was kept of a claim.
func (c *causes) drop(claim types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()

	delete(c.tried, claim)
}

// worked ends a trouble, and gives the claims that waited for their turns.
func (c *causes) worked(name string) []types.NamespacedName {
	c.mu.Lock()
	defer c.mu.Unlock()

	known := c.open[name]
	if known == nil {
		return nil
	}

	delete(c.open, name)

	out := make([]types.NamespacedName, 0, len(known.turns))
	for claim := range known.turns {
		out = append(out, claim)
	}

	return out
}

// forget drops the turns of a claim that is gone, and causes that nothing was heard of for long.
func (c *causes) forget(claim types.NamespacedName, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()

	delete(c.tried, claim)

	for name, known := range c.open {
		delete(known.turns, claim)

		if now.Sub(known.at) > forgetAfter {
			delete(c.open, name)
		}
	}
}
