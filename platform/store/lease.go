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
)

// leaseAttempts is the number of attempts to acquire a lease. An attempt fails if the lease is
// released between its two statements.
const leaseAttempts = 3

// leaseColumns has a column for each field of openapi.Lease.
const leaseColumns = `extract(epoch from expires_at - clock_timestamp())::double precision as expires_in_seconds, holder, name`

// PutLease gives a free or expired lease to the holder, or renews the holder's own lease. If ttl is
// 0 or negative, it releases the holder's lease. It returns the current lease, whose holder is
// empty if the lease is free. All times come from the database's clock.
func (s *Store) PutLease(ctx context.Context, name, holder string, ttl time.Duration) (lease openapi.Lease, err error) {
	err = s.runRepeatable(ctx, func(ctx context.Context) (err error) {
		if ttl <= 0 {
			lease, err = s.releaseLease(ctx, name, holder)
		} else {
			lease, err = s.takeLease(ctx, name, holder, ttl)
		}

		return err
	})
	if err != nil {
		return openapi.Lease{}, fmt.Errorf("put lease %s: %w", name, err)
	}

	return lease, nil
}

func (s *Store) releaseLease(ctx context.Context, name, holder string) (openapi.Lease, error) {
	if _, err := s.pool.Exec(ctx, `-- name: ReleaseLease
delete from leases where name = $1 and holder = $2`, name, holder); err != nil {
		return openapi.Lease{}, err
	}

	return s.currentLease(ctx, name)
}

func (s *Store) takeLease(ctx context.Context, name, holder string, ttl time.Duration) (openapi.Lease, error) {
	for range leaseAttempts {
		lease, err := queryOne(ctx, s.pool, pgx.RowToStructByName[openapi.Lease], `-- name: TakeLease
insert into leases (name, holder, expires_at)
values ($1, $2, clock_timestamp() + make_interval(secs => $3::double precision))
on conflict (name) do update set holder = excluded.holder, expires_at = excluded.expires_at
where leases.holder = excluded.holder or leases.expires_at <= clock_timestamp()
returning `+leaseColumns, name, holder, ttl.Seconds())
		if !errors.Is(err, pgx.ErrNoRows) {
			return lease, err
		}

		current, err := s.currentLease(ctx, name)
		if err != nil || current.Holder != "" {
			return current, err
		}
	}

	return openapi.Lease{Name: name}, nil
}

func (s *Store) currentLease(ctx context.Context, name string) (openapi.Lease, error) {
	lease, err := queryOne(ctx, s.pool, pgx.RowToStructByName[openapi.Lease], `-- name: GetLease
select `+leaseColumns+` from leases where name = $1 and expires_at > clock_timestamp()`, name)
	if errors.Is(err, pgx.ErrNoRows) {
		return openapi.Lease{Name: name}, nil
	}

	return lease, err
}
