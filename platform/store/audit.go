// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"

	"github.com/hyperfleet/hyperfleet/platform/store/db"
)

// AuditEntry says who did something that can't be undone. It outlives its resource. Actor is
// the caller, empty where callers have no names; Action, for example, force-delete;
// ResourceID, Kind and Name are of the resource that was asked about, and Removed are the ids
// of all resources that went.
type AuditEntry = db.AddAuditParams

// Audit adds an entry to the audit log.
func (tx *Tx) Audit(ctx context.Context, entry AuditEntry) error {
	entry.At = storedTime(entry.At)

	if err := tx.queries.AddAudit(ctx, entry); err != nil {
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
