// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/platform/store/db"
)

const (
	pruneEvery = 5 * time.Minute
	// pruneBatch bounds one transaction.
	pruneBatch = 5000

	// pruneLock is the advisory lock of the replica that prunes.
	pruneLock = 0x6879_7066_0002
)

// keepPruned removes old changes until ctx ends.
func (s *Store) keepPruned(ctx context.Context) {
	for retry.Pause(ctx, s.options.Clock, pruneEvery) == nil {
		if _, err := s.PruneChanges(ctx, s.options.ChangesKept); err != nil && ctx.Err() == nil {
			s.options.Log.Warn("could not remove old changes and tries again later", "error", err)
		}
	}
}

// PruneChanges removes the changes that are older than kept, by the database's clock, and
// returns how many they were. Cursors from before them are gone. It removes nothing while
// another replica does. The store calls it by itself.
func (s *Store) PruneChanges(ctx context.Context, kept time.Duration) (int64, error) {
	var all int64

	for {
		removed, err := s.pruneSome(ctx, kept)
		if err != nil {
			return all, fmt.Errorf("remove old changes: %w", explain(err))
		}

		all += removed

		if removed < pruneBatch {
			return all, nil
		}
	}
}

func (s *Store) pruneSome(parent context.Context, kept time.Duration) (int64, error) {
	ctx, cancel := context.WithTimeout(parent, s.options.Timeout)
	defer cancel()

	var removed int64

	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		queries := s.queries.WithTx(tx)

		mine, err := queries.LockPruning(ctx, pruneLock)
		if err != nil || !mine {
			return err
		}

		removed, err = queries.PruneChanges(ctx, db.PruneChangesParams{KeptSeconds: kept.Seconds(), AtMost: pruneBatch})

		return err
	})

	return removed, err
}
