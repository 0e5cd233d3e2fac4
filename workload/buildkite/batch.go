// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// batcher makes one call for all that is asked for while another call is under way: the
// Stacks API takes many jobs in a call and few calls in a second. Nobody waits for
// others to come.
type batcher[T any] struct {
	// call gives what it got by the jobs' ids.
	call func(ctx context.Context, ids []string, seconds int64) (map[string]T, error)
	// turn holds one, whose call is under way.
	turn chan struct{}

	mu      sync.Mutex
	waiting []*wish[T]
}

// wish is one job that somebody waits for. All but done is set before done is closed.
type wish[T any] struct {
	id      string
	seconds int64
	done    chan struct{}
	got     T
	ok      bool
	err     error
}

func newBatcher[T any](call func(ctx context.Context, ids []string, seconds int64) (map[string]T, error)) *batcher[T] {
	return &batcher[T]{call: call, turn: make(chan struct{}, 1)}
}

// get gives what the call gave for the job, and false if it gave nothing.
func (b *batcher[T]) get(ctx context.Context, id string, seconds int64) (T, bool, error) {
	mine := &wish[T]{id: id, seconds: seconds, done: make(chan struct{})}

	b.mu.Lock()
	b.waiting = append(b.waiting, mine)
	b.mu.Unlock()

	for {
		select {
		case <-mine.done:
			return mine.got, mine.ok, mine.err
		case b.turn <- struct{}{}:
			b.serve(ctx)
			<-b.turn
		case <-ctx.Done():
			b.mu.Lock()
			b.waiting = slices.DeleteFunc(b.waiting, func(w *wish[T]) bool { return w == mine })
			b.mu.Unlock()

			return mine.got, false, fmt.Errorf("wait for job %s: %w", id, ctx.Err())
		}
	}
}

// serve makes one call for those who wait for the same time as the first. It goes on when
// the one who makes it goes away; each of its tries has the client's timeout.
func (b *batcher[T]) serve(ctx context.Context) {
	wishes := b.take()
	if len(wishes) == 0 {
		return
	}

	ids := make([]string, 0, len(wishes))
	for _, w := range wishes {
		ids = append(ids, w.id)
	}

	slices.Sort(ids)

	got, err := b.call(context.WithoutCancel(ctx), slices.Compact(ids), wishes[0].seconds)
	for _, w := range wishes {
		w.got, w.ok = got[w.id]
		w.err = err
		close(w.done)
	}
}

func (b *batcher[T]) take() []*wish[T] {
	b.mu.Lock()
	defer b.mu.Unlock()

	var taken []*wish[T]

	b.waiting = slices.DeleteFunc(b.waiting, func(w *wish[T]) bool {
		if len(taken) == maxBatch || len(taken) > 0 && w.seconds != taken[0].seconds {
			return false
		}

		taken = append(taken, w)

		return true
	})

	return taken
}
