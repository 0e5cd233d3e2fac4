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

// leaseAttempts is the number of attempts to acquire a lease. An attempt fails if the lease is
// released between its two statements.
const leaseAttempts = 3

// PutLease gives a free or expired lease to the holder, or renews the holder's own lease. If ttl is
// 0 or negative, it releases the holder's lease. It returns the current lease, whose holder is
// empty if the lease is free. All times come from the database's clock.
func (s *Store) PutLease(parent context.Context, name, holder string, ttl time.Duration) (openapi.Lease, error) {
	ctx, cancel := context.WithTimeout(parent, s.options.Timeout)
	defer cancel()

	if ttl <= 0 {
		if _, err := s.queries.ReleaseLease(ctx, db.ReleaseLeaseParams{Name: name, Holder: holder}); err != nil {
			return openapi.Lease{}, fmt.Errorf("release lease %s: %w", name, classifyError(err))
		}

		return s.currentLease(ctx, name)
	}

	for range leaseAttempts {
		lease, err := s.queries.TakeLease(ctx, db.TakeLeaseParams{Name: name, Holder: holder, TtlSeconds: ttl.Seconds()})
		if err == nil {
			return openapi.Lease(lease), nil
		}

		if err = classifyError(err); !errors.Is(err, ErrNotFound) {
			return openapi.Lease{}, fmt.Errorf("acquire lease %s: %w", name, err)
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
	if err = classifyError(err); errors.Is(err, ErrNotFound) {
		return openapi.Lease{Name: name}, nil
	}

	if err != nil {
		return openapi.Lease{}, fmt.Errorf("read lease %s: %w", name, err)
	}

	return openapi.Lease(row), nil
}
