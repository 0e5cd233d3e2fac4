// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package networking_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/leanovate/gopter/prop"

	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

// queue has the owners that request addresses of one pool, and the order in which they wait.
type queue struct {
	t         testing.TB
	addresses *pools.AddressRegistry
	// waiting has the owners whose requests failed, in order. woken has those that were woken and have not
	// requested an address since.
	waiting, woken []string
	has            map[string]bool
}

// step does one action, and returns what is wrong after it.
func (q *queue) step(n int) string {
	owner := fmt.Sprintf("m%d", n%11)

	switch n / 11 % 8 {
	case 0, 1, 2:
		return q.acquireAddress(owner)
	case 3, 4:
		q.addresses.Release(owner)
		delete(q.has, owner)
		q.removeOwner(owner)
	case 5:
		q.addresses.StopWaiting(owner)
		q.removeOwner(owner)
	case 6:
		setPool(q.t, q.addresses, newPool(q.t, blue, "p", fmt.Sprintf("10.0.0.10-10.0.0.%d", 10+n%6)))
	default:
		return q.acquireNext()
	}

	return ""
}

// acquireNext calls Acquire for one of the woken owners.
func (q *queue) acquireNext() string {
	if len(q.woken) == 0 {
		return ""
	}

	return q.acquireAddress(q.woken[len(q.woken)-1])
}

func (q *queue) removeOwner(owner string) {
	gone := func(s string) bool { return s == owner }
	q.waiting, q.woken = slices.DeleteFunc(q.waiting, gone), slices.DeleteFunc(q.woken, gone)
}

func (q *queue) acquireAddress(owner string) string {
	q.woken = slices.DeleteFunc(q.woken, func(s string) bool { return s == owner })

	_, err := q.addresses.Acquire(pools.Request{
		Network: blue, Pool: "p", Owner: owner, Wake: func() { q.woken = append(q.woken, owner) },
	})

	var exhausted *alloc.ExhaustedError

	switch {
	case errors.As(err, &exhausted):
		if !slices.Contains(q.waiting, owner) {
			q.waiting = append(q.waiting, owner)
		}

		return ""
	case err != nil:
		return err.Error()
	case q.has[owner]:
		return ""
	}

	ahead := slices.Index(q.waiting, owner)
	if ahead < 0 {
		ahead = len(q.waiting)
	}

	q.has[owner] = true
	q.removeOwner(owner)

	if status, _ := q.addresses.Status("p"); status.CountAllocatable() < uint64(ahead) {
		return fmt.Sprintf("%s got an address, and %d are left for the %d who came before it", owner, status.CountAllocatable(), ahead)
	}

	return ""
}

// Feature: hyperfleet-operator, Property: who waits for an address is served in turn, and nobody is forgotten
//
// Owners acquire, release, stop waiting and are woken while the pool grows and shrinks. No owner gets an
// address that an earlier owner needs. When all woken owners have called Acquire, no owner waits while an
// address is free.
func TestPropertyInTurn(t *testing.T) {
	t.Parallel()

	property.Check(t, "in turn", property.Options{Runs: 500}, prop.ForAll(func(steps []int) string {
		q := &queue{t: t, addresses: pools.New(), has: map[string]bool{}}
		setPool(t, q.addresses, newPool(t, blue, "p", "10.0.0.10-10.0.0.12"))

		for _, n := range steps {
			if wrong := q.step(n); wrong != "" {
				return wrong
			}
		}

		for len(q.woken) > 0 {
			if wrong := q.acquireNext(); wrong != "" {
				return wrong
			}
		}

		status, _ := q.addresses.Status("p")
		if len(q.waiting) > 0 && status.CountAllocatable() > 0 {
			return fmt.Sprintf("%v wait, and %d addresses are free", q.waiting, status.CountAllocatable())
		}

		if status.Waiting != len(q.waiting) {
			return fmt.Sprintf("%d wait by the address registry, and it is %v", status.Waiting, q.waiting)
		}

		return ""
	}, genSteps(10, 200, 11*8*6)))
}
