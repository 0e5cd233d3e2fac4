// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"k8s.io/utils/ptr"

	"github.com/hyperfleet/hyperfleet/platform/store/db"
)

// Operations of changes.
const (
	OperationCreated = "created"
	// OperationUpdated: spec, labels or references changed.
	OperationUpdated = "updated"
	// OperationDeleting: deletion was asked for.
	OperationDeleting = "deleting"
	// OperationStatus: conditions changed.
	OperationStatus = "status"
	// OperationRemoved: the resource is gone.
	OperationRemoved = "removed"
)

const (
	defaultChanges = 500
	maxChanges     = 1000

	// pollEvery is how often the feed is looked at although nobody said that it changed.
	pollEvery = 2 * time.Second
	// pollSoon is how soon it is looked at again when there are changes that a running
	// transaction holds up; each further look is after twice the time, up to pollHeldUp.
	pollSoon   = 10 * time.Millisecond
	pollHeldUp = 320 * time.Millisecond
)

// Change says that something happened to a resource.
type Change struct {
	Kind string
	ID   string
	// OwnerID is empty for a resource without owner.
	OwnerID    string
	Generation int32
	// Operation is one of the Operation constants.
	Operation string
}

// ChangeQuery says which changes are asked for.
type ChangeQuery struct {
	// After is the cursor of an earlier answer. Empty: no changes, and the cursor of now.
	After string
	// Kind is the only one asked for; empty: all.
	Kind string
	// Tenancy of the resources; those with more than this are among them.
	Tenancy map[string]string
	// Limit of changes in the answer. Default: 500, at most 1000.
	Limit int
	// Wait is how long to wait for a change if there is none.
	Wait time.Duration
}

// Feed is a part of the change feed.
type Feed struct {
	// Items in the order in which they are to be heard: that of each resource's own
	// changes. A client that asks again after a lost answer hears some twice.
	Items []Change
	// Next is the cursor for the next query.
	Next string
}

// RecordChange adds a change of a resource, by its ID, Kind, OwnerID, Tenancy and
// Generation, to the feed: with the next query of the transaction, or with its commit, after
// which it is told. The resource has to be locked, or inserted, by the same transaction.
func (tx *Tx) RecordChange(ctx context.Context, resource Resource, operation string) error {
	err := tx.later.RecordChange(ctx, db.RecordChangeParams{
		Kind: resource.Kind, ResourceID: resource.ID, OwnerID: toPointer(resource.OwnerID), Tenancy: orEmpty(resource.Tenancy),
		Generation: resource.Generation, Operation: operation,
	})
	if err != nil {
		return fmt.Errorf("record change of %s: %w", resource.ID, explain(err))
	}

	tx.changed = true

	return nil
}

// Changes reads the feed; see the package's description for its order. It returns when
// there is a change, after Wait, or when ctx or the store ends. Errors: ErrCursorGone,
// ErrCursorMalformed.
func (s *Store) Changes(ctx context.Context, query ChangeQuery) (Feed, error) {
	query.Limit = min(cmp.Or(max(query.Limit, 0), defaultChanges), maxChanges)

	if query.After == "" {
		return s.feedNow(ctx)
	}

	at, err := parseCursor(query.After)
	if err != nil {
		return Feed{}, err
	}

	deadline := s.options.Clock.NewTimer(query.Wait)
	defer deadline.Stop()

	soon := pollSoon

	for {
		// Subscribed before it looks, so that nothing is missed in between.
		woken := s.waker.next()

		page, err := s.readChanges(ctx, at, query)
		if err != nil {
			return Feed{}, err
		}

		at = page.next
		if len(page.items) > 0 || query.Wait <= 0 {
			return Feed{Items: page.items, Next: at.text()}, nil
		}

		poll := pollEvery
		if page.soon {
			poll, soon = soon, min(2*soon, pollHeldUp)
		}

		if !s.await(ctx, deadline.C(), woken, poll) {
			return Feed{Next: at.text()}, ctx.Err()
		}
	}
}

// await says whether to look again.
func (s *Store) await(ctx context.Context, deadline <-chan time.Time, woken <-chan struct{}, every time.Duration) bool {
	poll := s.options.Clock.NewTimer(every)
	defer poll.Stop()

	select {
	case <-woken:
		return true
	case <-s.ended:
		return false
	case <-poll.C():
		return true
	case <-deadline:
		return false
	case <-ctx.Done():
		return false
	}
}

// feedNow returns the cursor of now.
func (s *Store) feedNow(ctx context.Context) (Feed, error) {
	var state db.FeedHorizonRow

	err := s.read(ctx, func(ctx context.Context, queries *db.Queries) (err error) {
		state, err = queries.FeedHorizon(ctx)

		return err
	})
	if err != nil {
		return Feed{}, fmt.Errorf("read state of change feed: %w", err)
	}

	return Feed{Next: cursor{epoch: state.Epoch, seq: state.Horizon}.text()}, nil
}

// changesPage is what one look at the feed brings.
type changesPage struct {
	items []Change
	next  cursor
	// soon: there are changes that a running transaction holds up.
	soon bool
}

func (s *Store) readChanges(ctx context.Context, at cursor, query ChangeQuery) (changesPage, error) {
	var page changesPage

	err := s.read(ctx, func(ctx context.Context, queries *db.Queries) (err error) {
		page, err = pageAfter(ctx, queries, at, db.ListChangesParams{
			AfterSeq: at.seq, OfKind: query.Kind, OfTenancy: orEmpty(query.Tenancy),
			AtMost: int32(query.Limit), //nolint:gosec // at most maxChanges
		})

		return err
	})
	if err != nil {
		return changesPage{}, fmt.Errorf("read changes: %w", err)
	}

	return page, nil
}

// pageAfter reads the changes after a cursor. Each query sees what was committed when it
// began, so their order matters: the horizon before the changes below it, and what was
// pruned after them.
func pageAfter(ctx context.Context, queries *db.Queries, at cursor, params db.ListChangesParams) (changesPage, error) {
	state, err := queries.FeedHorizon(ctx)
	if err != nil {
		return changesPage{}, err
	}

	if at.epoch != state.Epoch || at.seq > state.Drawn {
		return changesPage{}, ErrCursorGone
	}

	params.UpToSeq = state.Horizon

	rows, err := queries.ListChanges(ctx, params)
	if err != nil {
		return changesPage{}, err
	}

	floor, err := queries.FeedFloor(ctx)
	if err != nil {
		return changesPage{}, err
	}

	if at.seq < floor {
		return changesPage{}, ErrCursorGone
	}

	page := changesPage{
		next: cursor{epoch: at.epoch, seq: max(at.seq, state.Horizon)},
		soon: state.Horizon < state.Drawn,
	}

	for _, row := range rows {
		page.items = append(page.items, Change{
			Kind: row.Kind, ID: row.ResourceID, OwnerID: ptr.Deref(row.OwnerID, ""), Generation: row.Generation,
			Operation: row.Operation,
		})
	}

	if len(rows) == int(params.AtMost) {
		page.next.seq = rows[len(rows)-1].Seq
	}

	return page, nil
}
