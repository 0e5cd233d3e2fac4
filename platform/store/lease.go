// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/store/db"
)

// leaseTries: between two statements a lease may be given back.
const leaseTries = 3

// PutLease gives a free or expired lease to the holder, renews the holder's own, and
// says who has it, which may be nobody; with a ttl of 0 or less the holder gives it back. All
// times are the database's.
func (s *Store) PutLease(parent context.Context, name, holder string, ttl time.Duration) (openapi.Lease, error) {
	ctx, cancel := context.WithTimeout(parent, s.options.Timeout)
	defer cancel()

	if ttl <= 0 {
		if _, err := s.queries.ReleaseLease(ctx, db.ReleaseLeaseParams{Name: name, Holder: holder}); err != nil {
			return openapi.Lease{}, fmt.Errorf("give lease %s back: %w", name, explain(err))
		}

		return s.currentLease(ctx, name)
	}

	for range leaseTries {
		taken, err := s.queries.TakeLease(ctx, db.TakeLeaseParams{Name: name, Holder: holder, TtlSeconds: ttl.Seconds()})
		if err == nil {
			return openapi.Lease(taken), nil
		}

		if err = explain(err); !errors.Is(err, ErrNotFound) {
			return openapi.Lease{}, fmt.Errorf("take lease %s: %w", name, err)
		}

		current, err := s.currentLease(ctx, name)
		if err != nil || current.Holder != "" {
			return current, err
		}
	}

	return openapi.Lease{Name: name}, nil
}

func (s *Store) currentLease(ctx context.Context, name string) (openapi.Lease, error) {
	row, err := s.queries.GetLease(ctx, name)
	if err = explain(err); errors.Is(err, ErrNotFound) {
		return openapi.Lease{Name: name}, nil
	}

	if err != nil {
		return openapi.Lease{}, fmt.Errorf("read lease %s: %w", name, err)
	}

	return openapi.Lease(row), nil
}
