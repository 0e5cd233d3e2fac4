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
	// openThreshold is the number of consecutive failures after which a circuit breaker opens. From then on
	// the claims that depend on the cause take turns.
	openThreshold = 3
	// turnInterval is the time between two turns.
	turnInterval = time.Second
	// forgetAfter is the time without a failure after which a circuit breaker is dropped.
	forgetAfter = 10 * time.Minute
)

// circuitBreakers holds one circuit breaker per cause of failures: a node, a hypervisor cluster, the scope
// at a CI platform, or the identity provider. While a breaker is open, the claims that depend on the cause
// take turns, and together make one attempt a second. The first success closes the breaker. Breakers are
// kept in memory: after a restart it takes openThreshold failures to open one again. The zero value is
// ready to use.
type circuitBreakers struct {
	mu      sync.Mutex
	byCause map[string]*circuitBreaker
	// attempts holds the latest attempts of each claim. It is newer than the claim's status if a reconcile has
	// an old copy of the claim, or if the API server refuses a status update.
	attempts map[types.NamespacedName]attemptRecord
}

// attemptRecord holds the failed attempts of one claim.
type attemptRecord struct {
	backoff  v1alpha1.Backoff
	attempts int32
	// hasFailed is true if the claim has failed, with the reason and the message.
	hasFailed       bool
	reason, message string
}

type circuitBreaker struct {
	failures    int
	lastMessage string
	failedAt    time.Time
	// latestTurn is the latest turn that is assigned, and takenAt is when a claim last took its turn.
	latestTurn, takenAt time.Time
	// turns holds the turns of the claims that wait.
	turns map[types.NamespacedName]time.Time
}

// recordFailure counts a failure of a claim. It returns how long the claim waits for its next turn, or 0 if
// the breaker is closed.
func (c *circuitBreakers) recordFailure(cause string, claim types.NamespacedName, now time.Time, message string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.byCause == nil {
		c.byCause = map[string]*circuitBreaker{}
	}

	breaker := c.byCause[cause]
	if breaker == nil {
		breaker = &circuitBreaker{turns: map[types.NamespacedName]time.Time{}}
		c.byCause[cause] = breaker
	}

	breaker.failures++
	breaker.lastMessage, breaker.failedAt = message, now
	delete(breaker.turns, claim)

	if breaker.failures < openThreshold {
		return 0
	}

	return breaker.turnOf(claim, now).Sub(now)
}

// turnOf returns the turn of a claim, and assigns a turn if the claim has none.
func (c *circuitBreaker) turnOf(claim types.NamespacedName, now time.Time) time.Time {
	if turn, ok := c.turns[claim]; ok {
		return turn
	}

	if c.latestTurn.Before(now) {
		c.latestTurn = now
	}

	c.latestTurn = c.latestTurn.Add(turnInterval)
	c.turns[claim] = c.latestTurn

	return c.latestTurn
}

// admit returns how long a claim must wait for its turn, and the message of the last failure. It returns 0
// if the claim has its turn or the breaker is closed.
func (c *circuitBreakers) admit(
	cause string, claim types.NamespacedName, now time.Time,
) (remaining time.Duration, lastMessage string) {
	c.mu.Lock()
	defer c.mu.Unlock()

	breaker := c.byCause[cause]
	if breaker == nil || breaker.failures < openThreshold {
		return 0, ""
	}

	remaining = breaker.turnOf(claim, now).Sub(now)
	if remaining <= 0 {
		// A claim that is late for its turn must not take the turn of another claim.
		if remaining = breaker.takenAt.Add(turnInterval).Sub(now); remaining <= 0 {
			breaker.takenAt = now
			delete(breaker.turns, claim)

			return 0, ""
		}

		breaker.turns[claim] = now.Add(remaining)
	}

	return remaining, breaker.lastMessage
}

func (c *circuitBreakers) recordAttempts(claim types.NamespacedName, record attemptRecord) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.attempts == nil {
		c.attempts = map[types.NamespacedName]attemptRecord{}
	}

	c.attempts[claim] = record
}

// attemptsOf returns the stored attempts of a claim, and false if it has none.
func (c *circuitBreakers) attemptsOf(claim types.NamespacedName) (attemptRecord, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	record, ok := c.attempts[claim]

	return record, ok
}

// dropAttempts deletes the stored attempts of a claim.
func (c *circuitBreakers) dropAttempts(claim types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()

	delete(c.attempts, claim)
}

// closeBreaker closes the breaker of a cause, and returns the claims that waited for their turns.
func (c *circuitBreakers) closeBreaker(cause string) []types.NamespacedName {
	c.mu.Lock()
	defer c.mu.Unlock()

	breaker := c.byCause[cause]
	if breaker == nil {
		return nil
	}

	delete(c.byCause, cause)

	out := make([]types.NamespacedName, 0, len(breaker.turns))
	for claim := range breaker.turns {
		out = append(out, claim)
	}

	return out
}

// forget deletes the attempts and turns of a deleted claim, and all breakers without a recent failure.
func (c *circuitBreakers) forget(claim types.NamespacedName, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()

	delete(c.attempts, claim)

	for name, breaker := range c.byCause {
		delete(breaker.turns, claim)

		if now.Sub(breaker.failedAt) > forgetAfter {
			delete(c.byCause, name)
		}
	}
}
