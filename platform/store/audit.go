// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
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
	entry.At = storedTime(entry.At)

	if err := tx.queries.AddAudit(ctx, db.AddAuditParams(entry)); err != nil {
		return fmt.Errorf("write audit log: %w", explain(err))
	}

	return nil
}

// AuditLog reads what was done to a resource, oldest first.
func (s *Store) AuditLog(ctx context.Context, id string) ([]AuditEntry, error) {
	if !isID(id) {
		return nil, nil
	}

	var entries []AuditEntry

	err := s.read(ctx, func(ctx context.Context, queries *db.Queries) error {
		rows, err := queries.ListAudit(ctx, id)

		entries = make([]AuditEntry, 0, len(rows))
		for _, row := range rows {
			row.At = storedTime(row.At)
			entries = append(entries, AuditEntry(row))
		}

		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read audit log of %s: %w", id, err)
	}

	return entries, nil
}
