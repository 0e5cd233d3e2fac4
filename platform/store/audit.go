// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/hyperfleet/hyperfleet/platform/store/db"
)

// AuditEntry says who did something that can't be undone. It outlives its resource.
type AuditEntry struct {
	At time.Time
	// Actor is the caller, empty where callers have no names.
	Actor string
	// Action, for example force-delete.
	Action string
	Reason string
	// ResourceID, Kind and Name of the resource that was asked about.
	ResourceID, Kind, Name string
	// Removed are the ids of all resources that went.
	Removed []string
}

// Audit adds an entry to the audit log.
func (tx *Tx) Audit(ctx context.Context, entry AuditEntry) error {
	if entry.Removed == nil {
		entry.Removed = []string{}
	}

	removed, err := json.Marshal(entry.Removed)
	if err != nil {
		return fmt.Errorf("write audit log: %w", err)
	}

	err = tx.queries.AddAudit(ctx, db.AddAuditParams{
		At: storedTime(entry.At), Actor: entry.Actor, Action: entry.Action, Reason: entry.Reason,
		ResourceID: entry.ResourceID, Kind: entry.Kind, Name: entry.Name, Removed: removed,
	})
	if err != nil {
		return fmt.Errorf("write audit log: %w", explain(err))
	}

	return nil
}

// AuditLog reads what was done to a resource, oldest first.
func (s *Store) AuditLog(ctx context.Context, id string) ([]AuditEntry, error) {
	if !isID(id) {
		return nil, nil
	}

	var rows []db.Audit

	err := s.read(ctx, func(ctx context.Context, queries *db.Queries) (err error) {
		rows, err = queries.ListAudit(ctx, id)

		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read audit log of %s: %w", id, err)
	}

	entries := make([]AuditEntry, 0, len(rows))

	for _, row := range rows {
		entry := AuditEntry{
			At: storedTime(row.At), Actor: row.Actor, Action: row.Action, Reason: row.Reason,
			ResourceID: row.ResourceID, Kind: row.Kind, Name: row.Name,
		}
		if err := json.Unmarshal(row.Removed, &entry.Removed); err != nil {
			return nil, fmt.Errorf("read audit log of %s: %w", id, err)
		}

		entries = append(entries, entry)
	}

	return entries, nil
}
