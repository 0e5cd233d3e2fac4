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
	pruneInterval = 5 * time.Minute
	// pruneBatchSize is the maximum number of changes that one transaction removes.
	pruneBatchSize = 5000

	// pruneLock is the advisory lock that a replica holds while it prunes.
	pruneLock = 0x6879_7066_0002
)

// runPruner removes old changes until ctx ends.
func (s *Store) runPruner(ctx context.Context) {
	for retry.Sleep(ctx, s.options.Clock, pruneInterval) == nil {
		if _, err := s.PruneChanges(ctx, s.options.ChangesRetention); err != nil && ctx.Err() == nil {
			s.options.Log.Warn("could not remove old changes: retry later", "error", err)
		}
	}
}

// PruneChanges removes the changes that are older than the retention, by the database's clock, and
// returns their number. Cursors from before these changes become invalid. It removes nothing while
// another replica prunes. The store calls it periodically.
func (s *Store) PruneChanges(ctx context.Context, retention time.Duration) (int64, error) {
	var total int64

	for {
		removed, err := s.pruneOneBatch(ctx, retention)
		if err != nil {
			return total, fmt.Errorf("remove old changes: %w", err)
		}

		total += removed

		if removed < pruneBatchSize {
			return total, nil
		}
	}
}

func (s *Store) pruneOneBatch(parent context.Context, retention time.Duration) (removed int64, err error) {
	params := db.PruneChangesParams{KeptSeconds: retention.Seconds(), MaxRows: pruneBatchSize}

	err = s.runRepeatable(parent, func(ctx context.Context, _ *db.Queries) error {
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			queries := s.queries.WithTx(tx)

			isLocked, err := queries.LockPruning(ctx, pruneLock)
			if err != nil || !isLocked {
				return err
			}

			removed, err = queries.PruneChanges(ctx, params)

			return err
		})
	})

	return removed, err
}
