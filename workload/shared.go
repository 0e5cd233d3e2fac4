// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/utils/clock"
)

// Shared is a listing that all callers share: it is made anew only where it is older than
// a caller bears, and once for all who wait. Set the fields before the first use.
type Shared[T any] struct {
	// List makes the listing. It goes on when one of those who wait goes away.
	List func(context.Context) (T, error)
	// May says whether a listing may be made now; nil means always.
	May func() error
	// Timeout bounds a whole listing.
	Timeout time.Duration
	Clock   clock.PassiveClock

	flight singleflight.Group

	mu sync.Mutex
	// at is when the listing was begun: what it says is no newer.
	at   time.Time
	have bool
	last T
}

// Get gives a listing that was begun at most maxAge ago.
func (s *Shared[T]) Get(ctx context.Context, maxAge time.Duration) (T, error) {
	oldest := s.Clock.Now().Add(-max(maxAge, 0))

	// A listing that was under way when this call came may be too old; the next is not.
	for {
		if last, fresh := s.since(oldest); fresh {
			return last, nil
		}

		var none T

		if s.May != nil {
			if err := s.May(); err != nil {
				return none, err
			}
		}

		if err := s.share(ctx, oldest); err != nil {
			return none, err
		}
	}
}

// Change puts something else in the place of what was listed, such as the listing without
// what is known to be gone. Callers hold the old value: it has to be left as it is.
func (s *Shared[T]) Change(change func(T) T) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.last = change(s.last)
}

// Forget makes the next caller list anew.
func (s *Shared[T]) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.have = false
}

// Age is how old the listing is, if there is one.
func (s *Shared[T]) Age() (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.Clock.Since(s.at), s.have
}

func (s *Shared[T]) since(oldest time.Time) (T, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.last, s.have && !s.at.Before(oldest)
}

func (s *Shared[T]) share(ctx context.Context, oldest time.Time) error {
	done := s.flight.DoChan("list", func() (any, error) {
		if _, fresh := s.since(oldest); fresh {
			return nil, nil //nolint:nilnil // the listing is kept beside
		}

		shared, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Timeout)
		defer cancel()

		begun := s.Clock.Now()

		listed, err := s.List(shared)
		if err != nil {
			return nil, err
		}

		s.mu.Lock()
		defer s.mu.Unlock()

		if !s.have || !begun.Before(s.at) {
			s.at, s.have, s.last = begun, true, listed
		}

		return nil, nil //nolint:nilnil // the listing is kept beside
	})

	select {
	case result := <-done:
		return result.Err
	case <-ctx.Done():
		return fmt.Errorf("wait for the listing: %w", ctx.Err())
	}
}
