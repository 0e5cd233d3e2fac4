// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/store/db"
)

// Statuses reads the newest report of each adapter, by adapter's name; none for a
// resource that is not there.
func (tx *Tx) Statuses(ctx context.Context, id string) ([]openapi.AdapterStatus, error) {
	return statuses(ctx, tx.queries, id)
}

// Statuses reads the newest report of each adapter, by adapter's name; none for a
// resource that is not there.
func (s *Store) Statuses(ctx context.Context, id string) ([]openapi.AdapterStatus, error) {
	var found []openapi.AdapterStatus

	err := s.read(ctx, func(ctx context.Context, queries *db.Queries) (err error) {
		found, err = statuses(ctx, queries, id)

		return err
	})

	return found, err
}

func statuses(ctx context.Context, queries *db.Queries, id string) ([]openapi.AdapterStatus, error) {
	if !isID(id) {
		return nil, nil
	}

	rows, err := queries.ListStatuses(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("list statuses of %s: %w", id, explain(err))
	}

	found := make([]openapi.AdapterStatus, 0, len(rows))
	for _, row := range rows {
		found = append(found, openapi.AdapterStatus{
			Adapter: row.Adapter, ObservedGeneration: row.ObservedGeneration, ObservedTime: storedTime(row.ObservedTime),
			AdapterConfigVersion: row.ConfigVersion, AdapterFrameworkVersion: row.FrameworkVersion,
			CreatedTime: storedTime(row.CreatedTime), LastReportTime: storedTime(row.LastReportTime),
			Conditions: row.Conditions, Data: row.Data, Metadata: row.Metadata,
		})
	}

	return found, nil
}

// PutStatus stores an adapter's report in place of its earlier one, whose CreatedTime is
// kept. Errors: ErrNotFound if the resource is not there, ErrUnstorable, also when the
// transaction ends.
func (tx *Tx) PutStatus(ctx context.Context, id string, status openapi.AdapterStatus) error {
	if status.Conditions == nil {
		status.Conditions = []openapi.AdapterCondition{}
	}

	err := tx.later.PutStatus(ctx, db.PutStatusParams{
		ResourceID: id, Adapter: status.Adapter, ObservedGeneration: status.ObservedGeneration,
		ObservedTime: storedTime(status.ObservedTime), ConfigVersion: status.AdapterConfigVersion,
		FrameworkVersion: status.AdapterFrameworkVersion, CreatedTime: storedTime(status.CreatedTime),
		LastReportTime: storedTime(status.LastReportTime),
		Conditions:     status.Conditions, Data: status.Data, Metadata: status.Metadata,
	})
	if err != nil {
		return fmt.Errorf("store status of %s by %s: %w", id, status.Adapter, explain(err))
	}

	return nil
}
