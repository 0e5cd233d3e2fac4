// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/hyperfleet/hyperfleet/api/openapi"
)

// selectStatuses has a column for each field of openapi.AdapterStatus.
const selectStatuses = `-- name: ListStatuses
select adapter, config_version as adapter_config_version, framework_version as adapter_framework_version, conditions,
       created_time, data, last_report_time, metadata, observed_generation, observed_time
from statuses where resource_id = $1 order by adapter collate "C"`

// Statuses returns the newest report of each adapter, sorted by the adapter's name. It returns none
// if the resource does not exist.
func (tx *Tx) Statuses(ctx context.Context, id string) ([]openapi.AdapterStatus, error) {
	return listStatuses(ctx, tx.session, id)
}

// Statuses is like Tx.Statuses, in a transaction of its own.
func (s *Store) Statuses(ctx context.Context, id string) (found []openapi.AdapterStatus, err error) {
	err = s.runRepeatable(ctx, func(ctx context.Context) (err error) {
		found, err = listStatuses(ctx, s.pool, id)

		return err
	})

	return found, err
}

func listStatuses(ctx context.Context, to querier, id string) ([]openapi.AdapterStatus, error) {
	if !isID(id) {
		return nil, nil
	}

	found, err := queryAll(ctx, to, toStatus, selectStatuses, id)

	return found, wrapf(err, "list statuses of %s", id)
}

func toStatus(row pgx.CollectableRow) (openapi.AdapterStatus, error) {
	status, err := pgx.RowToStructByName[openapi.AdapterStatus](row)
	status.CreatedTime, status.LastReportTime = normalizeTime(status.CreatedTime), normalizeTime(status.LastReportTime)
	status.ObservedTime = normalizeTime(status.ObservedTime)

	return status, err
}

// PutStatus replaces the adapter's stored report but keeps its CreatedTime. If the resource does not exist, or the report
// can't be stored (ErrUnstorable), the next query or the commit returns the error.
func (tx *Tx) PutStatus(id string, status openapi.AdapterStatus) {
	if status.Conditions == nil {
		status.Conditions = []openapi.AdapterCondition{}
	}

	tx.session.pending.Queue(`-- name: PutStatus
insert into statuses (resource_id, adapter, observed_generation, observed_time, conditions, data, metadata,
                      config_version, framework_version, created_time, last_report_time)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
on conflict (resource_id, adapter) do update
set observed_generation = excluded.observed_generation, observed_time = excluded.observed_time,
    conditions = excluded.conditions, data = excluded.data, metadata = excluded.metadata,
    config_version = excluded.config_version, framework_version = excluded.framework_version,
    last_report_time = excluded.last_report_time`,
		id, status.Adapter, status.ObservedGeneration, normalizeTime(status.ObservedTime), status.Conditions, status.Data,
		status.Metadata, status.AdapterConfigVersion, status.AdapterFrameworkVersion, normalizeTime(status.CreatedTime),
		normalizeTime(status.LastReportTime))
}
