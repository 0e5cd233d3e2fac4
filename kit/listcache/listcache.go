// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package listcache

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/utils/clock"
)

// Cache caches a list that all callers share. It reads the list again only if the cached list
// is older than a caller accepts, and then once for all waiting callers. Set the exported fields
// before the first use.
type Cache[T any] struct {
	// List reads the list. It continues if one of the waiting callers cancels its context.
	List func(context.Context) (T, error)
	// CheckAllowed returns an error if List must not be called now. Nil means that List is always
	// allowed.
	CheckAllowed func() error
	// Timeout of one call of List.
	Timeout time.Duration
	Clock   clock.PassiveClock

	flight singleflight.Group

	mu sync.Mutex
	// startedAt is when List was called. The list may not contain later changes.
	startedAt time.Time
	isLoaded  bool
	value     T
}

// Get returns a list whose call of List started at most maxAge ago.
func (s *Cache[T]) Get(ctx context.Context, maxAge time.Duration) (T, error) {
	oldest := s.Clock.Now().Add(-max(maxAge, 0))

	// A call of List that was in flight when Get was called may be too old. The next one is not.
	for {
		if last, isFresh := s.valueSince(oldest); isFresh {
			return last, nil
		}

		var zero T

		if s.CheckAllowed != nil {
			if err := s.CheckAllowed(); err != nil {
				return zero, err
			}
		}

		if err := s.refresh(ctx, oldest); err != nil {
			return zero, err
		}
	}
}

// Update replaces the cached list with the result of change, for example to leave out an object
// that was just deleted. Callers hold the old list, so change must not modify it.
func (s *Cache[T]) Update(change func(T) T) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.value = change(s.value)
}

// Invalidate makes the next caller read the list again.
func (s *Cache[T]) Invalidate() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.isLoaded = false
}

// Age returns the age of the cached list, and false if no list is cached.
func (s *Cache[T]) Age() (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.Clock.Since(s.startedAt), s.isLoaded
}

// valueSince returns the cached list, and whether its call of List started at oldest or later.
func (s *Cache[T]) valueSince(oldest time.Time) (value T, isFresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.value, s.isLoaded && !s.startedAt.Before(oldest)
}

// refresh lists once for all concurrent callers, unless the cached list was started at oldest or later. If
// ctx ends, refresh returns, but the shared call continues for the other callers.
func (s *Cache[T]) refresh(ctx context.Context, oldest time.Time) error {
	done := s.flight.DoChan("list", func() (any, error) {
		if _, isFresh := s.valueSince(oldest); isFresh {
			return nil, nil //nolint:nilnil // the list is stored in s
		}

		shared, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Timeout)
		defer cancel()

		startedAt := s.Clock.Now()

		listed, err := s.List(shared)
		if err != nil {
			return nil, err
		}

		s.mu.Lock()
		defer s.mu.Unlock()

		if !s.isLoaded || !startedAt.Before(s.startedAt) {
			s.startedAt, s.isLoaded, s.value = startedAt, true, listed
		}

		return nil, nil //nolint:nilnil // the list is stored in s
	})

	select {
	case result := <-done:
		return result.Err
	case <-ctx.Done():
		return fmt.Errorf("wait for the shared list: %w", ctx.Err())
	}
}
