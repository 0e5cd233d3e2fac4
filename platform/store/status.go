// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"encoding/json"
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

	for i := range rows {
		status, err := statusFromRow(&rows[i])
		if err != nil {
			return nil, fmt.Errorf("read status of %s by %s: %w", id, rows[i].Adapter, err)
		}

		found = append(found, status)
	}

	return found, nil
}

func statusFromRow(row *db.Status) (openapi.AdapterStatus, error) {
	status := openapi.AdapterStatus{
		Adapter: row.Adapter, ObservedGeneration: row.ObservedGeneration, ObservedTime: storedTime(row.ObservedTime),
		AdapterConfigVersion: row.ConfigVersion, AdapterFrameworkVersion: row.FrameworkVersion,
		CreatedTime: storedTime(row.CreatedTime), LastReportTime: storedTime(row.LastReportTime),
	}

	for _, part := range []struct {
		json json.RawMessage
		to   any
	}{{row.Conditions, &status.Conditions}, {row.Data, &status.Data}, {row.Metadata, &status.Metadata}} {
		if part.json == nil {
			continue
		}

		if err := json.Unmarshal(part.json, part.to); err != nil {
			return openapi.AdapterStatus{}, err
		}
	}

	return status, nil
}

// PutStatus stores an adapter's report in place of its earlier one, whose CreatedTime is
// kept. Errors: ErrNotFound if the resource is not there, ErrUnstorable, also when the
// transaction ends.
func (tx *Tx) PutStatus(ctx context.Context, id string, status openapi.AdapterStatus) error {
	params := db.PutStatusParams{
		ResourceID: id, Adapter: status.Adapter, ObservedGeneration: status.ObservedGeneration,
		ObservedTime: storedTime(status.ObservedTime), ConfigVersion: status.AdapterConfigVersion,
		FrameworkVersion: status.AdapterFrameworkVersion, CreatedTime: storedTime(status.CreatedTime),
		LastReportTime: storedTime(status.LastReportTime),
	}

	var err error

	if status.Conditions == nil {
		status.Conditions = []openapi.AdapterCondition{}
	}

	if params.Conditions, err = json.Marshal(status.Conditions); err != nil {
		return fmt.Errorf("store status of %s by %s: %w", id, status.Adapter, err)
	}

	if params.Data, err = optionalJSON(status.Data); err != nil {
		return fmt.Errorf("store data of %s by %s: %w", id, status.Adapter, err)
	}

	if params.Metadata, err = optionalJSON(status.Metadata); err != nil {
		return fmt.Errorf("store metadata of %s by %s: %w", id, status.Adapter, err)
	}

	if err = tx.later.PutStatus(ctx, params); err != nil {
		return fmt.Errorf("store status of %s by %s: %w", id, status.Adapter, explain(err))
	}

	return nil
}

// optionalJSON is nil for what is absent.
func optionalJSON[T any](value *T) (json.RawMessage, error) {
	if value == nil {
		return nil, nil
	}

	return json.Marshal(*value)
}
