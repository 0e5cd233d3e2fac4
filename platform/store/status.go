// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/store/db"
)

// Statuses returns the newest report of each adapter, sorted by the adapter's name. It returns none
// if the resource does not exist.
func (tx *Tx) Statuses(ctx context.Context, id string) ([]openapi.AdapterStatus, error) {
	return listStatuses(ctx, tx.queries, id)
}

// Statuses is like Tx.Statuses, in a transaction of its own.
func (s *Store) Statuses(ctx context.Context, id string) ([]openapi.AdapterStatus, error) {
	var found []openapi.AdapterStatus

	err := s.runRepeatable(ctx, func(ctx context.Context, queries *db.Queries) (err error) {
		found, err = listStatuses(ctx, queries, id)

		return err
	})

	return found, err
}

func listStatuses(ctx context.Context, queries *db.Queries, id string) ([]openapi.AdapterStatus, error) {
	if !isID(id) {
		return nil, nil
	}

	rows, err := queries.ListStatuses(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("list statuses of %s: %w", id, classifyError(err))
	}

	found := make([]openapi.AdapterStatus, 0, len(rows))
	for _, row := range rows {
		found = append(found, openapi.AdapterStatus{
			Adapter: row.Adapter, ObservedGeneration: row.ObservedGeneration, ObservedTime: normalizeTime(row.ObservedTime),
			AdapterConfigVersion: row.ConfigVersion, AdapterFrameworkVersion: row.FrameworkVersion,
			CreatedTime: normalizeTime(row.CreatedTime), LastReportTime: normalizeTime(row.LastReportTime),
			Conditions: row.Conditions, Data: row.Data, Metadata: row.Metadata,
		})
	}

	return found, nil
}

// PutStatus replaces the adapter's stored report but keeps its CreatedTime. It returns ErrNotFound
// if the resource does not exist, or ErrUnstorable. The end of the transaction may return these
// errors instead.
func (tx *Tx) PutStatus(ctx context.Context, id string, status openapi.AdapterStatus) error {
	if status.Conditions == nil {
		status.Conditions = []openapi.AdapterCondition{}
	}

	err := tx.deferred.PutStatus(ctx, db.PutStatusParams{
		ResourceID: id, Adapter: status.Adapter, ObservedGeneration: status.ObservedGeneration,
		ObservedTime: normalizeTime(status.ObservedTime), ConfigVersion: status.AdapterConfigVersion,
		FrameworkVersion: status.AdapterFrameworkVersion, CreatedTime: normalizeTime(status.CreatedTime),
		LastReportTime: normalizeTime(status.LastReportTime),
		Conditions:     status.Conditions, Data: status.Data, Metadata: status.Metadata,
	})
	if err != nil {
		return fmt.Errorf("store status of %s by %s: %w", id, status.Adapter, classifyError(err))
	}

	return nil
}
