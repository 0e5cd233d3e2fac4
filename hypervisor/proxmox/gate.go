// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"slices"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// turnLife is how long a place is kept for a waiting owner that was woken.
const turnLife = 5 * time.Second

// gates bound the clones per storage. Who finds no place waits in line without a
// goroutine: it is woken when its turn comes, and the place is kept for it a while.
//
// A machine that a job waits for comes before those that are made to be held, and finds
// one place that those leave free, where there is more than one.
type gates struct {
	limit int
	wake  func(hypervisor.Owner)
	now   func() time.Time

	mu     sync.Mutex
	places map[string]*place
}

// place is the state of one storage.
type place struct {
	holders map[string]bool
	// turns are owners woken, by uid, with the time until which a place is kept.
	turns map[string]time.Time
	// line has those who wait: the wanted in the order they came, then the held.
	line []waiter
}

// waiter is an owner in line.
type waiter struct {
	owner hypervisor.Owner
	// held: nobody waits for the machine, it is made to be held.
	held bool
}

func newGates(limit int, wake func(hypervisor.Owner), now func() time.Time) *gates {
	return &gates{limit: max(limit, 1), wake: wake, now: now, places: map[string]*place{}}
}

// enter takes a place on a storage, for a machine that is wanted or to be held. If there is
// none, the owner is put in line, and ahead says how many are before it.
func (g *gates) enter(storage string, owner hypervisor.Owner, held bool) (entered bool, ahead int) {
	g.mu.Lock()
	defer g.mu.Unlock()

	p := g.at(storage)
	g.expire(p)

	if p.holders[owner.UID] {
		return true, 0
	}

	who := waiter{owner: owner, held: held}
	before := p.before(who)

	if _, turn := p.turns[owner.UID]; turn || g.room(p, held) && before == 0 {
		delete(p.turns, owner.UID)
		p.leaveLine(owner)
		p.holders[owner.UID] = true

		return true, 0
	}

	if at := slices.Index(p.line, who); at >= 0 {
		return false, at
	}

	p.leaveLine(owner) // it was to be held, and is wanted now
	p.line = slices.Insert(p.line, before, who)

	return false, before
}

// room tells whether there is a free place for a machine that is wanted or to be held.
func (g *gates) room(p *place, held bool) bool {
	limit := g.limit
	if held && limit > 1 {
		limit--
	}

	return len(p.holders)+len(p.turns) < limit
}

// before is how many in line a newcomer lets go first.
func (p *place) before(who waiter) int {
	if who.held {
		return len(p.line)
	}

	first := slices.IndexFunc(p.line, func(w waiter) bool { return w.held })
	if first < 0 {
		return len(p.line)
	}

	return first
}

func (p *place) leaveLine(owner hypervisor.Owner) {
	p.line = slices.DeleteFunc(p.line, func(w waiter) bool { return w.owner.UID == owner.UID })
}

// leave gives back whatever the owner has on a storage: its place, its turn, its
// waiting. It wakes who comes next.
func (g *gates) leave(storage string, owner hypervisor.Owner) {
	g.mu.Lock()

	p := g.at(storage)
	delete(p.holders, owner.UID)
	delete(p.turns, owner.UID)
	p.leaveLine(owner)
	g.expire(p)
	woken := g.advance(p)
	g.tidy(storage, p)
	g.mu.Unlock()

	g.wakeAll(woken)
}

// tick passes on the turns that were not taken. It tells whether anybody waits.
func (g *gates) tick() bool {
	g.mu.Lock()

	var woken []hypervisor.Owner

	waiting := false

	for storage, p := range g.places {
		g.expire(p)
		woken = append(woken, g.advance(p)...)
		waiting = waiting || len(p.line) > 0 || len(p.turns) > 0
		g.tidy(storage, p)
	}
	g.mu.Unlock()

	g.wakeAll(woken)

	return waiting
}

// load is how many clones run or wait on a storage.
func (g *gates) load(storage string) int {
	g.mu.Lock()
	defer g.mu.Unlock()

	p, ok := g.places[storage]
	if !ok {
		return 0
	}

	return len(p.holders) + len(p.turns) + len(p.line)
}

func (g *gates) at(storage string) *place {
	p, ok := g.places[storage]
	if !ok {
		p = &place{holders: map[string]bool{}, turns: map[string]time.Time{}}
		g.places[storage] = p
	}

	return p
}

func (g *gates) expire(p *place) {
	now := g.now()
	for uid, until := range p.turns {
		if now.After(until) {
			delete(p.turns, uid)
		}
	}
}

// advance gives free places to the head of the line.
func (g *gates) advance(p *place) []hypervisor.Owner {
	var woken []hypervisor.Owner

	for len(p.line) > 0 && g.room(p, p.line[0].held) {
		next := p.line[0].owner
		p.line = p.line[1:]
		p.turns[next.UID] = g.now().Add(turnLife)
		woken = append(woken, next)
	}

	return woken
}

func (g *gates) tidy(storage string, p *place) {
	if len(p.holders)+len(p.turns)+len(p.line) == 0 {
		delete(g.places, storage)
	}
}

func (g *gates) wakeAll(owners []hypervisor.Owner) {
	for _, owner := range owners {
		g.wake(owner)
	}
}
