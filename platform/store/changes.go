// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hyperfleet/hyperfleet/kit/retry"
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

	pruneInterval = 5 * time.Minute
	// pruneBatchSize is the maximum number of changes that one transaction removes.
	pruneBatchSize = 5000
	// pruneLock is the advisory lock that a replica holds while it prunes.
	pruneLock = 0x6879_7066_0002
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
func (tx *Tx) RecordChange(resource Resource, operation string) {
	tx.session.pending.Queue(`-- name: RecordChange
insert into changes (kind, resource_id, owner_id, tenancy, generation, operation) values ($1, $2, $3, $4, $5, $6)`,
		resource.Kind, resource.ID, toPointer(resource.OwnerID), orEmpty(resource.Tenancy), resource.Generation, operation)

	tx.hasChanges = true
}

// waker notifies any number of waiters that the feed may have changed.
type waker struct {
	mu    sync.Mutex
	woken chan struct{}
}

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

// feedHorizon is the last number that was drawn, and the number up to which all transactions have ended.
type feedHorizon struct{ LastSeq, Horizon int64 }

func readHorizon(ctx context.Context, to querier) (feedHorizon, error) {
	return queryOne(ctx, to, pgx.RowToStructByName[feedHorizon], `-- name: FeedHorizon
select h.drawn::bigint as last_seq, h.horizon::bigint as horizon from change_horizon() h`)
}

// feedPosition is the newest position up to a number. IsKnown is true if the change that a cursor names exists, or is the
// last one that was pruned.
type feedPosition struct {
	Seq, Token int64
	IsKnown    bool
}

func readPosition(ctx context.Context, to querier, after cursor, upToSeq int64) (feedPosition, error) {
	return queryOne(ctx, to, pgx.RowToStructByName[feedPosition], `-- name: FeedPosition
select newest.seq, newest.token,
       exists (select from changes where seq = $1 and token = $2)
       or exists (select from feed where floor = $1 and floor_token = $2) as is_known
from ((select changes.seq, changes.token from changes where changes.seq <= $3 order by changes.seq desc limit 1)
      union all (select feed.floor, feed.floor_token from feed)
      order by seq desc limit 1) newest`, after.seq, after.token, upToSeq)
}

func (s *Store) readCurrentCursor(ctx context.Context) (Feed, error) {
	var current feedPosition

	err := s.runRepeatable(ctx, func(ctx context.Context) error {
		state, err := readHorizon(ctx, s.pool)
		if err != nil {
			return err
		}

		current, err = readPosition(ctx, s.pool, cursor{}, state.Horizon)

		return err
	})
	if err != nil {
		return Feed{}, fmt.Errorf("read state of change feed: %w", err)
	}

	latest := cursor{token: current.Token, seq: current.Seq}
	s.incarnation.remember(latest, asLatest)

	return Feed{Next: latest.encode()}, nil
}

type changeRow struct {
	Seq, Token int64
	Change
}

// changesPage is the result of one read of the feed.
type changesPage struct {
	items []Change
	next  cursor
	// isBlocked is true if a running transaction has a number, and may still commit a change with it.
	// Changes with this and higher numbers are not read before the transaction ends.
	isBlocked bool
}

func (s *Store) readChanges(ctx context.Context, position cursor, query ChangeQuery) (page changesPage, err error) {
	err = s.runRepeatable(ctx, func(ctx context.Context) (err error) {
		page, err = readPage(ctx, s.pool, position, query)

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
func readPage(ctx context.Context, to querier, position cursor, query ChangeQuery) (changesPage, error) {
	state, err := readHorizon(ctx, to)
	if err != nil {
		return changesPage{}, err
	}

	rows, err := queryAll(ctx, to, pgx.RowToStructByName[changeRow], `-- name: ListChanges
select seq, token, kind, resource_id as id, coalesce(owner_id::text, '') as owner_id, generation, operation from changes
where seq > $1 and seq <= $2 and ($3::text = '' or kind = $3) and tenancy @> $4
order by seq limit $5`, position.seq, state.Horizon, query.Kind, orEmpty(query.Tenancy), query.Limit)
	if err != nil {
		return changesPage{}, err
	}

	newest, err := readPosition(ctx, to, position, state.Horizon)
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
		page.items = append(page.items, row.Change)
	}

	// After a full page, the next one continues with the row after its last row.
	if len(rows) == query.Limit {
		last := rows[len(rows)-1]
		page.next = cursor{token: last.Token, seq: last.Seq}
	}

	return page, nil
}

// runPruner removes old changes until ctx ends.
func (s *Store) runPruner(ctx context.Context) {
	for retry.Sleep(ctx, s.options.Clock, pruneInterval) == nil {
		if _, err := s.PruneChanges(ctx, s.options.ChangesRetention); err != nil && ctx.Err() == nil {
			s.options.Log.Warn("could not remove old changes: retry later", "error", err)
		}
	}
}

// PruneChanges removes the changes that are older than the retention, by the database's clock, and
// returns their number. Cursors from before these changes become invalid. It removes nothing while
// another replica prunes. The store calls it periodically.
func (s *Store) PruneChanges(ctx context.Context, retention time.Duration) (int64, error) {
	var total int64

	for {
		removed, err := s.pruneOneBatch(ctx, retention)
		if err != nil {
			return total, fmt.Errorf("remove old changes: %w", err)
		}

		total += removed

		if removed < pruneBatchSize {
			return total, nil
		}
	}
}

func (s *Store) pruneOneBatch(parent context.Context, retention time.Duration) (removed int64, err error) {
	err = s.runRepeatable(parent, func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			isLocked, err := queryOne(ctx, tx, pgx.RowTo[bool], "-- name: LockPruning\nselect pg_try_advisory_xact_lock($1)", pruneLock)
			if err != nil || !isLocked {
				return err
			}

			removed, err = queryOne(ctx, tx, pgx.RowTo[int64], `-- name: PruneChanges
with kept as (
    select least(
        (select c.horizon + 1 from change_horizon() c),
        (select changes.seq from changes
         where changes.at >= clock_timestamp() - make_interval(secs => $1::double precision)
         order by changes.seq limit 1)
    ) as first
), gone as (
    delete from changes where changes.seq in (
        select old.seq from changes old where old.seq < (select kept.first from kept) order by old.seq limit $2
    ) returning changes.seq, changes.token
), floor as (
    update feed set floor = newest.seq, floor_token = newest.token
    from (select gone.seq, gone.token from gone order by gone.seq desc limit 1) newest
    where newest.seq > feed.floor
    returning 1
)
select count(*) from gone`, retention.Seconds(), pruneBatchSize)

			return err
		})
	})

	return removed, err
}
