// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"time"

	"github.com/hyperfleet/hyperfleet/platform/store/db"
)

// Pending has the number of resources of one kind whose condition Reconciled is False. It counts
// either the resources whose deletion was requested (Deleting) or the others. Stuck is the number
// of resources that have been in this state for longer than the threshold, counted from the request
// for deletion if there is one. LongestSeconds is the time of the resource that has been stuck for
// longest, 0 if none is.
type Pending = db.PendingRow

// Pending counts the resources that are not reconciled, by kind and by whether they are being
// deleted. The parameter now is the time of the clock that conditions are written with.
func (s *Store) Pending(ctx context.Context, now time.Time, stuckAfter time.Duration) (counts []Pending, err error) {
	err = s.runRepeatable(ctx, func(ctx context.Context, queries *db.Queries) (err error) {
		counts, err = queries.Pending(ctx, db.PendingParams{StuckBefore: now.Add(-stuckAfter), Now: now})

		return err
	})
	if err != nil {
		return nil, fmt.Errorf("count resources that are not reconciled: %w", err)
	}

	return counts, nil
}
