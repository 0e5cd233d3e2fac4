// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"

	"github.com/hyperfleet/hyperfleet/platform/store/db"
)

// AuditEntry records an action that can't be undone. The entry is kept after its resource was
// removed. Actor is the caller, empty if callers have no names. Action is, for example,
// force-delete. ResourceID, Kind and Name are those of the resource in the request, and Removed are
// the IDs of all resources that were removed.
type AuditEntry = db.AddAuditParams

// Audit adds an entry to the audit log.
func (tx *Tx) Audit(ctx context.Context, entry AuditEntry) error {
	entry.At = normalizeTime(entry.At)

	if err := tx.queries.AddAudit(ctx, entry); err != nil {
		return fmt.Errorf("write audit log: %w", classifyError(err))
	}

	return nil
}
