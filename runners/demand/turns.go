// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// turns bound what is done at a time, for all and for each source, so that one that is
// slow leaves places for others.
type turns struct {
	all  chan struct{}
	each int

	mu      sync.Mutex
	sources map[string]*places
}

type places struct {
	taken chan struct{}
	users int
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

// take waits for a turn; done gives it back. The error is the context's.
func (t *turns) take(ctx context.Context, source string) (done func(), err error) {
	own := t.enter(source)

	select {
	case own.taken <- struct{}{}:
	case <-ctx.Done():
		t.leave(source, own)

		return nil, ctx.Err()
	}

	select {
	case t.all <- struct{}{}:
	case <-ctx.Done():
		<-own.taken
		t.leave(source, own)

		return nil, ctx.Err()
	}

	return func() {
		<-t.all
		<-own.taken
		t.leave(source, own)
	}, nil
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
