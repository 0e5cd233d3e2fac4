// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/store/db"
)

// leaseAttempts is the number of attempts to acquire a lease. An attempt fails if the lease is
// released between its two statements.
const leaseAttempts = 3

// PutLease gives a free or expired lease to the holder, or renews the holder's own lease. If ttl is
// 0 or negative, it releases the holder's lease. It returns the current lease, whose holder is
// empty if the lease is free. All times come from the database's clock.
func (s *Store) PutLease(ctx context.Context, name, holder string, ttl time.Duration) (lease openapi.Lease, err error) {
	err = s.runRepeatable(ctx, func(ctx context.Context, queries *db.Queries) (err error) {
		if ttl <= 0 {
			lease, err = releaseLease(ctx, queries, name, holder)
		} else {
			lease, err = takeLease(ctx, queries, db.TakeLeaseParams{Name: name, Holder: holder, TtlSeconds: ttl.Seconds()})
		}

		return err
	})
	if err != nil {
		return openapi.Lease{}, fmt.Errorf("put lease %s: %w", name, err)
	}

	return lease, nil
}

func releaseLease(ctx context.Context, queries *db.Queries, name, holder string) (openapi.Lease, error) {
	if _, err := queries.ReleaseLease(ctx, db.ReleaseLeaseParams{Name: name, Holder: holder}); err != nil {
		return openapi.Lease{}, err
	}

	return currentLease(ctx, queries, name)
}

func takeLease(ctx context.Context, queries *db.Queries, params db.TakeLeaseParams) (openapi.Lease, error) {
	for range leaseAttempts {
		lease, err := queries.TakeLease(ctx, params)
		if err == nil {
			return openapi.Lease(lease), nil
		}

		if !errors.Is(err, pgx.ErrNoRows) {
			return openapi.Lease{}, err
		}

		current, err := currentLease(ctx, queries, params.Name)
		if err != nil || current.Holder != "" {
			return current, err
		}
	}

	return openapi.Lease{Name: params.Name}, nil
}

func currentLease(ctx context.Context, queries *db.Queries, name string) (openapi.Lease, error) {
	row, err := queries.GetLease(ctx, name)
	if errors.Is(err, pgx.ErrNoRows) {
		return openapi.Lease{Name: name}, nil
	}

	return openapi.Lease(row), err
}
