// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// slowReadAfter is how long a body may take while other requests wait for its slot. The body of a
// job event arrives within a few milliseconds. Behind an ingress all senders have the same address.
const slowReadAfter = 250 * time.Millisecond

// readLimiter limits the bodies that are read at the same time, in total and per source address, so
// that a slow sender leaves slots for others. While a request waits, the limiter aborts the slowest
// read.
type readLimiter struct {
	slots     chan struct{}
	perSource int

	mu      sync.Mutex
	sources map[string]*sourceSlots
	// reading holds the reads whose body is not complete, in the order in which they started.
	reading []*readSlot
}

type sourceSlots struct {
	slots chan struct{}
	users int
}

// readSlot is the slot of one body.
type readSlot struct {
	limiter     *readLimiter
	source      string
	sourceSlots *sourceSlots
	startedAt   time.Time
	abort       func()
}

func newReadLimiter(all int) *readLimiter {
	return &readLimiter{slots: make(chan struct{}, all), perSource: max(all/2, 1), sources: map[string]*sourceSlots{}}
}

// clientAddress returns the address that a request comes from, without its port.
func clientAddress(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}

	return host
}

// acquire waits for a slot, which the caller must release. It returns the context's error if the
// context ends first. Until the body is read, the limiter may call abort, which makes the read
// fail.
func (t *readLimiter) acquire(ctx context.Context, source string, abort func()) (*readSlot, error) {
	out := &readSlot{limiter: t, source: source, sourceSlots: t.addUser(source), abort: abort}

	if err := t.acquireFrom(ctx, out.sourceSlots.slots, source); err != nil {
		t.removeUser(source, out.sourceSlots)

		return nil, err
	}

	if err := t.acquireFrom(ctx, t.slots, ""); err != nil {
		<-out.sourceSlots.slots
		t.removeUser(source, out.sourceSlots)

		return nil, err
	}

	t.mu.Lock()
	defer t.mu.Unlock()

	out.startedAt = time.Now()
	t.reading = append(t.reading, out)

	return out, nil
}

// acquireFrom waits for one of the slots. While it waits, it aborts slow reads of the source, or of
// any source if source is empty.
func (t *readLimiter) acquireFrom(ctx context.Context, slots chan struct{}, source string) error {
	select {
	case slots <- struct{}{}:
		return nil
	default:
	}

	ticker := time.NewTicker(slowReadAfter)
	defer ticker.Stop()

	acquired := make(chan struct{})
	defer close(acquired)

	// The aborts run in a goroutine, so that the send below keeps its place in the channel's queue.
	go func() {
		for {
			select {
			case <-ticker.C:
				t.abortSlowest(source)
			case <-acquired:
				return
			}
		}
	}()

	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// abortSlowest aborts the read that started first, if it has taken longer than slowReadAfter.
func (t *readLimiter) abortSlowest(source string) {
	t.mu.Lock()
	defer t.mu.Unlock()

	i := slices.IndexFunc(t.reading, func(slot *readSlot) bool { return source == "" || slot.source == source })
	if i < 0 || time.Since(t.reading[i].startedAt) < slowReadAfter {
		return
	}

	t.reading[i].abort()
	t.reading = slices.Delete(t.reading, i, i+1)
}

// markRead records that the body is complete or that its read failed.
func (t *readSlot) markRead() {
	t.limiter.mu.Lock()
	defer t.limiter.mu.Unlock()

	t.limiter.reading = slices.DeleteFunc(t.limiter.reading, func(slot *readSlot) bool { return slot == t })
}

// release returns the slot.
func (t *readSlot) release() {
	t.markRead()
	<-t.limiter.slots
	<-t.sourceSlots.slots
	t.limiter.removeUser(t.source, t.sourceSlots)
}

func (t *readLimiter) addUser(source string) *sourceSlots {
	t.mu.Lock()
	defer t.mu.Unlock()

	own, ok := t.sources[source]
	if !ok {
		own = &sourceSlots{slots: make(chan struct{}, t.perSource)}
		t.sources[source] = own
	}

	own.users++

	return own
}

// removeUser deletes the slots of a source that no request uses.
func (t *readLimiter) removeUser(source string, own *sourceSlots) {
	t.mu.Lock()
	defer t.mu.Unlock()

	own.users--
	if own.users == 0 {
		delete(t.sources, source)
	}
}
