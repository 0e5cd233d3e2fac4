// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

const (
	// rebuildTimeout bounds one try.
	rebuildTimeout = time.Minute
	// rebuildRetry is the time between two tries.
	rebuildRetry = 2 * time.Second
)

// ErrNotRebuilt says that the book is not filled yet.
var ErrNotRebuilt = errors.New("the addresses in use are not read back from the API server yet")

// Reader puts into a book what the API server has on record of one kind of pools and
// machines, by SetPool and Restore, the oldest first: where two contradict each other, the
// first one wins. It reads past caches. A contradiction is for its log and no error.
type Reader func(ctx context.Context, b *Book) error

// warmup is the one rebuild of a process's life.
type warmup struct {
	once    sync.Once
	done    chan struct{}
	mu      sync.Mutex
	begun   bool
	readers []Reader
}

// ReadFrom adds a reader for Rebuild. All readers have to be there before the first
// controller of the book starts.
func (b *Book) ReadFrom(readers ...Reader) {
	b.warm.mu.Lock()
	defer b.warm.mu.Unlock()

	b.warm.readers = append(b.warm.readers, readers...)
}

// Rebuild fills the book anew from its readers. After an error it is empty.
func (b *Book) Rebuild(ctx context.Context) error {
	b.mu.Lock()
	b.clear()
	b.mu.Unlock()

	b.warm.mu.Lock()
	readers := b.warm.readers
	b.warm.mu.Unlock()

	for _, read := range readers {
		if err := read(ctx, b); err != nil {
			b.mu.Lock()
			b.clear()
			b.mu.Unlock()

			return fmt.Errorf("rebuild the book of addresses: %w", err)
		}
	}

	return nil
}

// Ready says whether the book has been filled through its gate.
func (b *Book) Ready() bool {
	select {
	case <-b.warm.done:
		return true
	default:
		return false
	}
}

// Check is a readiness check: not ready from the time that this process leads until the
// book is filled. A process that stands by is ready.
func (b *Book) Check(*http.Request) error {
	b.warm.mu.Lock()
	defer b.warm.mu.Unlock()

	if b.warm.begun && !b.Ready() {
		return ErrNotRebuilt
	}

	return nil
}

// Gate is a source for every controller that uses the book: it yields no events, but the
// controller does not begin before the book is filled. The first one to start, which is
// when the process leads, has it filled; tries that fail are repeated.
func (b *Book) Gate(c clock.WithTicker) source.SyncingSource { return gate{b, c} }

type gate struct {
	book  *Book
	clock clock.WithTicker
}

// Start begins the rebuild, once for all gates.
func (g gate) Start(ctx context.Context, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	g.book.warm.once.Do(func() {
		g.book.warm.mu.Lock()
		g.book.warm.begun = true
		g.book.warm.mu.Unlock()

		go g.book.fill(ctx, g.clock)
	})

	return nil
}

// WaitForSync waits for the rebuild's end.
func (g gate) WaitForSync(ctx context.Context) error {
	select {
	case <-g.book.warm.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the book of addresses: %w", ctx.Err())
	}
}

// String is for the controller's log.
func (gate) String() string { return "book of addresses" }

func (b *Book) fill(ctx context.Context, c clock.WithTicker) {
	logger := log.FromContext(ctx).WithName("pools")

	for {
		begun := c.Now()
		err := b.try(ctx)

		if err == nil {
			logger.Info("addresses in use are read back", "pools", len(b.Statuses()), "took", c.Since(begun).String())
			close(b.warm.done)

			return
		}

		if ctx.Err() != nil {
			return
		}

		logger.Error(err, "addresses in use can't be read back, trying again", "after", rebuildRetry.String())

		select {
		case <-ctx.Done():
			return
		case <-c.After(rebuildRetry):
		}
	}
}

func (b *Book) try(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, rebuildTimeout)
	defer cancel()

	return b.Rebuild(ctx)
}
