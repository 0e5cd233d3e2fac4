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

// slowAfter is how long a body may take while others wait for its place: that of a job is there
// within some milliseconds. Behind an ingress all senders have one address.
const slowAfter = 250 * time.Millisecond

// turns bound the bodies that are read at a time, for all and for each source, so that one that is
// slow leaves places for others. While somebody waits, the one that is slowest is cut off.
type turns struct {
	all  chan struct{}
	each int

	mu      sync.Mutex
	sources map[string]*places
	// reading are those whose body is not there yet, in the order in which they began.
	reading []*readTurn
}

type places struct {
	taken chan struct{}
	users int
}

// readTurn is one body's.
type readTurn struct {
	turns  *turns
	source string
	own    *places
	began  time.Time
	cut    func()
}

func newTurns(all int) *turns {
	return &turns{all: make(chan struct{}, all), each: max(all/2, 1), sources: map[string]*places{}}
}

// addressOf is the address a request comes from, without its port.
func addressOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}

	return host
}

// take waits for a turn, which is to be given back. Until its body is read it may be cut off: its
// reader hears of that by an error. The error is the context's.
func (t *turns) take(ctx context.Context, source string, cut func()) (*readTurn, error) {
	out := &readTurn{turns: t, source: source, own: t.enter(source), cut: cut}

	if err := t.wait(ctx, out.own.taken, source); err != nil {
		t.leave(source, out.own)

		return nil, err
	}

	if err := t.wait(ctx, t.all, ""); err != nil {
		<-out.own.taken
		t.leave(source, out.own)

		return nil, err
	}

	t.mu.Lock()
	defer t.mu.Unlock()

	out.began = time.Now()
	t.reading = append(t.reading, out)

	return out, nil
}

// wait waits for one of some places, and cuts off slow ones of a source, or of any.
func (t *turns) wait(ctx context.Context, places chan struct{}, source string) error {
	select {
	case places <- struct{}{}:
		return nil
	default:
	}

	ticker := time.NewTicker(slowAfter)
	defer ticker.Stop()

	over := make(chan struct{})
	defer close(over)

	// Beside: whoever waits keeps its place in the queue.
	go func() {
		for {
			select {
			case <-ticker.C:
				t.cutSlowest(source)
			case <-over:
				return
			}
		}
	}()

	select {
	case places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// cutSlowest cuts off the one that has been read for longest, if that is long.
func (t *turns) cutSlowest(source string) {
	t.mu.Lock()
	defer t.mu.Unlock()

	i := slices.IndexFunc(t.reading, func(one *readTurn) bool { return source == "" || one.source == source })
	if i < 0 || time.Since(t.reading[i].began) < slowAfter {
		return
	}

	t.reading[i].cut()
	t.reading = slices.Delete(t.reading, i, i+1)
}

// read says that the body is there, or will not be.
func (t *readTurn) read() {
	t.turns.mu.Lock()
	defer t.turns.mu.Unlock()

	t.turns.reading = slices.DeleteFunc(t.turns.reading, func(one *readTurn) bool { return one == t })
}

// done gives the turn back.
func (t *readTurn) done() {
	t.read()
	<-t.turns.all
	<-t.own.taken
	t.turns.leave(t.source, t.own)
}

func (t *turns) enter(source string) *places {
	t.mu.Lock()
	defer t.mu.Unlock()

	own, ok := t.sources[source]
	if !ok {
		own = &places{taken: make(chan struct{}, t.each)}
		t.sources[source] = own
	}

	own.users++

	return own
}

// leave forgets a source that nobody waits for.
func (t *turns) leave(source string, own *places) {
	t.mu.Lock()
	defer t.mu.Unlock()

	own.users--
	if own.users == 0 {
		delete(t.sources, source)
	}
}
