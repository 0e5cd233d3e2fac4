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

// sourceSlots has the slots of one source address.
type sourceSlots struct {
	slots chan struct{}
	// requests is the number of requests that wait for one of the slots or hold one.
	requests int
}

// readSlot is the place of one body in the limiter. It holds a slot of the limiter and a slot of the source.
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

// acquire waits for a slot of the source and a slot of the limiter. The caller must release them. acquire
// returns the context's error if the context ends first. Until the body is read, the limiter may call
// abort, which makes the read fail.
func (l *readLimiter) acquire(ctx context.Context, source string, abort func()) (*readSlot, error) {
	out := &readSlot{limiter: l, source: source, sourceSlots: l.retainSource(source), abort: abort}

	if err := l.acquireFrom(ctx, out.sourceSlots.slots, source); err != nil {
		l.releaseSource(source, out.sourceSlots)

		return nil, err
	}

	if err := l.acquireFrom(ctx, l.slots, ""); err != nil {
		<-out.sourceSlots.slots
		l.releaseSource(source, out.sourceSlots)

		return nil, err
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	out.startedAt = time.Now()
	l.reading = append(l.reading, out)

	return out, nil
}

// acquireFrom waits for one of the slots. While it waits, it aborts slow reads of the source, or of
// any source if source is empty.
func (l *readLimiter) acquireFrom(ctx context.Context, slots chan struct{}, source string) error {
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
				l.abortSlowest(source)
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

// abortSlowest aborts the read of the source that started first, if it has taken longer than slowReadAfter. If source
// is empty, it considers the reads of all sources.
func (l *readLimiter) abortSlowest(source string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	i := slices.IndexFunc(l.reading, func(slot *readSlot) bool { return source == "" || slot.source == source })
	if i < 0 || time.Since(l.reading[i].startedAt) < slowReadAfter {
		return
	}

	l.reading[i].abort()
	l.reading = slices.Delete(l.reading, i, i+1)
}

// markRead removes the read from the reads that can be aborted: its body is complete, or the read failed.
func (s *readSlot) markRead() {
	s.limiter.mu.Lock()
	defer s.limiter.mu.Unlock()

	s.limiter.reading = slices.DeleteFunc(s.limiter.reading, func(slot *readSlot) bool { return slot == s })
}

// release ends the read and frees both slots that acquire took: one of the limiter and one of the source.
func (s *readSlot) release() {
	s.markRead()
	<-s.limiter.slots
	<-s.sourceSlots.slots
	s.limiter.releaseSource(s.source, s.sourceSlots)
}

// retainSource returns the slots of a source, and counts a request that uses them.
func (l *readLimiter) retainSource(source string) *sourceSlots {
	l.mu.Lock()
	defer l.mu.Unlock()

	slots, ok := l.sources[source]
	if !ok {
		slots = &sourceSlots{slots: make(chan struct{}, l.perSource)}
		l.sources[source] = slots
	}

	slots.requests++

	return slots
}

// releaseSource is the reverse of retainSource: it counts one request less, and deletes the slots of a source
// that has no more requests.
func (l *readLimiter) releaseSource(source string, slots *sourceSlots) {
	l.mu.Lock()
	defer l.mu.Unlock()

	slots.requests--
	if slots.requests == 0 {
		delete(l.sources, source)
	}
}
