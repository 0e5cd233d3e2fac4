// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hyperfleet/hyperfleet/platform/store/db"
)

// Lease says who acts.
type Lease struct {
	Name string
	// Holder is empty if nobody holds it.
	Holder string
	// ExpiresIn is how long the lease still holds, by the database's clock.
	ExpiresIn time.Duration
}

// leaseTries: between two statements a lease may be given back.
const leaseTries = 3

// PutLease gives a free or expired lease to the holder, renews the holder's own, and
// says who has it; with a ttl of 0 or less the holder gives it back. All times are the
// database's.
func (s *Store) PutLease(parent context.Context, name, holder string, ttl time.Duration) (Lease, error) {
	ctx, cancel := context.WithTimeout(parent, s.options.Timeout)
	defer cancel()

	if ttl <= 0 {
		if _, err := s.queries.ReleaseLease(ctx, db.ReleaseLeaseParams{Name: name, Holder: holder}); err != nil {
			return Lease{}, fmt.Errorf("give lease %s back: %w", name, explain(err))
		}

		lease, _, err := s.currentLease(ctx, name)

		return lease, err
	}

	for range leaseTries {
		taken, err := s.queries.TakeLease(ctx, db.TakeLeaseParams{Name: name, Holder: holder, TtlSeconds: ttl.Seconds()})
		if err == nil {
			return lease(taken.Name, taken.Holder, taken.ExpiresIn), nil
		}

		if err = explain(err); !errors.Is(err, ErrNotFound) {
			return Lease{}, fmt.Errorf("take lease %s: %w", name, err)
		}

		current, held, err := s.currentLease(ctx, name)
		if err != nil || held {
			return current, err
		}
	}

	return Lease{Name: name}, nil
}

func (s *Store) currentLease(ctx context.Context, name string) (Lease, bool, error) {
	row, err := s.queries.GetLease(ctx, name)
	if err = explain(err); errors.Is(err, ErrNotFound) {
		return Lease{Name: name}, false, nil
	}

	if err != nil {
		return Lease{}, false, fmt.Errorf("read lease %s: %w", name, err)
	}

	return lease(row.Name, row.Holder, row.ExpiresIn), true, nil
}

func lease(name, holder string, seconds float64) Lease {
	return Lease{Name: name, Holder: holder, ExpiresIn: time.Duration(seconds * float64(time.Second))}
}
