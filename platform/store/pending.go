// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"time"

	"github.com/hyperfleet/hyperfleet/platform/store/db"
)

// Pending counts the resources of one kind whose condition Reconciled is False.
type Pending struct {
	Kind string
	// Deleting: these are resources whose deletion was asked for.
	Deleting bool
	Count    int
	// Stuck are those that have been so for longer than asked; of those that are being
	// deleted, since deletion was asked for.
	Stuck int
	// Longest is for how long the first of the stuck ones has been so; 0 without any.
	Longest time.Duration
}

// Pending counts, by kind and whether they are being deleted, the resources that are not
// reconciled. Now is the time by the clock that conditions are written by.
func (s *Store) Pending(ctx context.Context, now time.Time, stuckAfter time.Duration) ([]Pending, error) {
	var rows []db.PendingRow

	err := s.read(ctx, func(ctx context.Context, queries *db.Queries) (err error) {
		rows, err = queries.Pending(ctx, now.Add(-stuckAfter))

		return err
	})
	if err != nil {
		return nil, fmt.Errorf("count resources that are not reconciled: %w", err)
	}

	counts := make([]Pending, 0, len(rows))

	for _, row := range rows {
		count := Pending{Kind: row.Kind, Deleting: row.Deleting, Count: int(row.Pending), Stuck: int(row.Stuck)}
		if count.Stuck > 0 {
			count.Longest = now.Sub(row.Oldest)
		}

		counts = append(counts, count)
	}

	return counts, nil
}
