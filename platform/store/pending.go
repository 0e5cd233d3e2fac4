// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"time"

	"github.com/hyperfleet/hyperfleet/platform/store/db"
)

// Pending counts the resources of one kind, those whose deletion was asked for (Deleting) or
// the others, whose condition Reconciled is False. Stuck are those that have been so for longer
// than asked; of those that are being deleted, since deletion was asked for. LongestSeconds is
// for how long the first of the stuck ones has been so; 0 without any.
type Pending = db.PendingRow

// Pending counts, by kind and whether they are being deleted, the resources that are not
// reconciled. Now is the time by the clock that conditions are written by.
func (s *Store) Pending(ctx context.Context, now time.Time, stuckAfter time.Duration) (counts []Pending, err error) {
	err = s.read(ctx, func(ctx context.Context, queries *db.Queries) (err error) {
		counts, err = queries.Pending(ctx, db.PendingParams{StuckBefore: now.Add(-stuckAfter), Now: now})

		return err
	})
	if err != nil {
		return nil, fmt.Errorf("count resources that are not reconciled: %w", err)
	}

	return counts, nil
}
