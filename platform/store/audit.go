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
