// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/ptr"

	"github.com/hyperfleet/hyperfleet/platform/store/db"
)

// Operations of changes.
const (
	OperationCreated = "created"
	// OperationUpdated means that the spec, labels or references changed.
	OperationUpdated = "updated"
	// OperationDeleting means that the deletion of the resource was requested.
	OperationDeleting = "deleting"
	// OperationStatus means that conditions changed.
	OperationStatus = "status"
	// OperationRemoved means that the resource was removed.
	OperationRemoved = "removed"
)

const (
	defaultChanges = 500
	maxChanges     = 1000

	// pollInterval is how often the feed is polled if no notification arrives.
	pollInterval = 2 * time.Second
	// minBlockedPollInterval is the first poll interval while a running transaction blocks changes.
	// The interval doubles with each poll up to maxBlockedPollInterval.
	minBlockedPollInterval = 10 * time.Millisecond
	maxBlockedPollInterval = 320 * time.Millisecond
)

// Change is one change of a resource.
type Change struct {
	Kind string
	ID   string
	// OwnerID is empty for a resource without an owner.
	OwnerID    string
	Generation int32
	// Operation is one of the Operation constants.
	Operation string
}

// ChangeQuery selects changes.
type ChangeQuery struct {
	// After is the cursor of an earlier result. If it is empty, the result is the current cursor
	// without changes.
	After string
	// Kind selects the changes of one kind. If it is empty, the changes of all kinds are selected.
	Kind string
	// Tenancy selects resources that have at least these dimensions with these values.
	Tenancy map[string]string
	// Limit is the maximum number of changes in the result. Default: 500, at most 1000.
	Limit int
	// Wait is how long to wait for a change if there is none.
	Wait time.Duration
}

// Feed is a part of the change feed.
type Feed struct {
	// Items are in the order in which a client has to process them: the changes of each resource
	// are in the order in which they happened. If a client repeats a query because it lost the
	// response, it gets the same changes again.
	Items []Change
	// Next is the cursor for the next query.
	Next string
}

// RecordChange adds a change of a resource to the feed. It uses the resource's ID, Kind, OwnerID,
// Tenancy and Generation. The change is written with the next query of the transaction or with its
// commit, and readers are notified after the commit. The same transaction must have locked or
// inserted the resource.
func (tx *Tx) RecordChange(ctx context.Context, resource Resource, operation string) error {
	err := tx.deferred.RecordChange(ctx, db.RecordChangeParams{
		Kind: resource.Kind, ResourceID: resource.ID, OwnerID: toPointer(resource.OwnerID), Tenancy: orEmpty(resource.Tenancy),
		Generation: resource.Generation, Operation: operation,
	})
	if err != nil {
		return fmt.Errorf("record change of %s %s (%s): %w", resource.Kind, resource.ID, operation, classifyError(err))
	}

	tx.hasChanges = true

	return nil
}

// waker notifies any number of waiters that the feed may have changed.
type waker struct {
	mu    sync.Mutex
	woken chan struct{}
}

// nextWake returns a channel that is closed at the next call of wake.
func (w *waker) nextWake() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.woken
}

func (w *waker) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()

	close(w.woken)
	w.woken = make(chan struct{})
}

// announce wakes waiters of this replica, and schedules a notification of the other replicas.
func (s *Store) announce() {
	s.waker.wake()

	select {
	case s.pendingAnnouncement <- struct{}{}:
	default:
	}
}

// Changes reads the feed; see the package documentation for its order. It returns when there is a
// change, after Wait, or when ctx or the store ends. Errors: ErrCursorGone, ErrCursorMalformed.
func (s *Store) Changes(ctx context.Context, query ChangeQuery) (Feed, error) {
	query.Limit = min(cmp.Or(max(query.Limit, 0), defaultChanges), maxChanges)

	if query.After == "" {
		return s.readCurrentCursor(ctx)
	}

	position, err := parseCursor(query.After)
	if err != nil {
		return Feed{}, err
	}

	deadline := s.options.Clock.NewTimer(query.Wait)
	defer deadline.Stop()

	blockedInterval := minBlockedPollInterval

	for {
		// The subscription precedes the query, so that no change between them is missed.
		wake := s.waker.nextWake()

		page, err := s.readChanges(ctx, position, query)
		if err != nil {
			return Feed{}, err
		}

		position = page.next
		if len(page.items) > 0 || query.Wait <= 0 {
			return Feed{Items: page.items, Next: position.encode()}, nil
		}

		poll := pollInterval
		if page.isBlocked {
			poll, blockedInterval = blockedInterval, min(2*blockedInterval, maxBlockedPollInterval)
		}

		if !s.waitForChange(ctx, deadline.C(), wake, poll) {
			return Feed{Next: position.encode()}, ctx.Err()
		}
	}
}

// waitForChange returns true if the feed has to be read again.
func (s *Store) waitForChange(ctx context.Context, deadline <-chan time.Time, wake <-chan struct{}, interval time.Duration) bool {
	poll := s.options.Clock.NewTimer(interval)
	defer poll.Stop()

	select {
	case <-wake:
		return true
	case <-s.listenerDone:
		return false
	case <-poll.C():
		return true
	case <-deadline:
		return false
	case <-ctx.Done():
		return false
	}
}

func (s *Store) readCurrentCursor(ctx context.Context) (Feed, error) {
	var current db.FeedPositionRow

	err := s.runRepeatable(ctx, func(ctx context.Context, queries *db.Queries) error {
		state, err := queries.FeedHorizon(ctx)
		if err != nil {
			return err
		}

		current, err = queries.FeedPosition(ctx, db.FeedPositionParams{UpToSeq: state.Horizon})

		return err
	})
	if err != nil {
		return Feed{}, fmt.Errorf("read state of change feed: %w", err)
	}

	latest := cursor{token: current.Token, seq: current.Seq}
	s.incarnation.remember(latest, asLatest)

	return Feed{Next: latest.encode()}, nil
}

// changesPage is the result of one read of the feed.
type changesPage struct {
	items []Change
	next  cursor
	// isBlocked is true if a running transaction has a number, and may still commit a change with it.
	// Changes with this and higher numbers are not read before the transaction ends.
	isBlocked bool
}

func (s *Store) readChanges(ctx context.Context, position cursor, query ChangeQuery) (changesPage, error) {
	var page changesPage

	err := s.runRepeatable(ctx, func(ctx context.Context, queries *db.Queries) (err error) {
		page, err = readPage(ctx, queries, position, db.ListChangesParams{
			AfterSeq: position.seq, OfKind: query.Kind, OfTenancy: orEmpty(query.Tenancy),
			MaxRows: int32(query.Limit), //nolint:gosec // at most maxChanges
		})

		return err
	})
	if err != nil {
		return changesPage{}, fmt.Errorf("read changes: %w", err)
	}

	s.incarnation.remember(page.next, asRead)

	return page, nil
}

// readPage reads the changes after a cursor, up to the horizon: the number up to which all transactions
// have ended. Each query sees what was committed before it began, so the order of the queries matters.
// The first query reads the horizon, the second one the changes, and the last one whether the change that the
// cursor names still exists, or is the last one that was pruned.
func readPage(ctx context.Context, queries *db.Queries, position cursor, params db.ListChangesParams) (changesPage, error) {
	state, err := queries.FeedHorizon(ctx)
	if err != nil {
		return changesPage{}, err
	}

	params.UpToSeq = state.Horizon

	rows, err := queries.ListChanges(ctx, params)
	if err != nil {
		return changesPage{}, err
	}

	newest, err := queries.FeedPosition(ctx, db.FeedPositionParams{
		AfterSeq: position.seq, AfterToken: position.token, UpToSeq: state.Horizon,
	})
	if err != nil {
		return changesPage{}, err
	}

	if !newest.IsKnown {
		return changesPage{}, ErrCursorGone
	}

	page := changesPage{next: position, isBlocked: state.Horizon < state.LastSeq}

	if newest.Seq > position.seq {
		page.next = cursor{token: newest.Token, seq: newest.Seq}
	}

	for _, row := range rows {
		page.items = append(page.items, Change{
			Kind: row.Kind, ID: row.ResourceID, OwnerID: ptr.Deref(row.OwnerID, ""), Generation: row.Generation,
			Operation: row.Operation,
		})
	}

	// After a full page, the next one continues with the row after its last row.
	if len(rows) == int(params.MaxRows) {
		last := rows[len(rows)-1]
		page.next = cursor{token: last.Token, seq: last.Seq}
	}

	return page, nil
}
