// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/singleflight"

	"github.com/hyperfleet/hyperfleet/platform/conditions"
)

const (
	restoredMessage = "no report since the database was restored, or failed over to another server"
	// dropTimeout limits the time in which all reports are dropped.
	dropTimeout = 10 * time.Minute
)

// incarnation is what this process knows about the incarnation of the database, which changes with a restore or
// a loss of data. In another incarnation, changes may be missing, so the reports may describe other objects
// than those on the clusters.
type incarnation struct {
	mu sync.Mutex
	// server is the server that this process has checked.
	server serverIdentity
	// latest is the position of the newest change that this process has seen. It is nil if there is none.
	latest *cursor
	group  singleflight.Group
}

// serverIdentity identifies a server and its start.
type serverIdentity struct{ Server, Started string }

func readServerIdentity(ctx context.Context, to querier) (serverIdentity, error) {
	return queryOne(ctx, to, pgx.RowToStructByName[serverIdentity], `-- name: ServerIdentity
select i.server, i.started from server_identity() i`)
}

// recordedIncarnation is the incarnation in the database. IsDropped is true if its reports were dropped, IsOwn is false
// after the database was restored from a dump.
type recordedIncarnation struct {
	serverIdentity

	IsDropped, IsOwn bool
}

// asLatest and asRead are the values of the parameter isLatest.
const asLatest, asRead = true, false

// remember records a position that a reader of the feed has reached. If isLatest is true, the position is the
// newest one of the feed, even if an earlier position has a higher number.
func (i *incarnation) remember(position cursor, isLatest bool) {
	i.mu.Lock()
	defer i.mu.Unlock()

	if isLatest || i.latest == nil || i.latest.seq <= position.seq {
		i.latest = &position
	}
}

func (i *incarnation) known() (serverIdentity, *cursor) {
	i.mu.Lock()
	defer i.mu.Unlock()

	return i.server, i.latest
}

func (i *incarnation) set(server serverIdentity, isDropped bool) {
	i.mu.Lock()
	defer i.mu.Unlock()

	i.server = server

	if isDropped {
		i.latest = nil
	}
}

// openIncarnation waits until the first connection of the pool has checked the server.
func (s *Store) openIncarnation(ctx context.Context) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}

	conn.Release()

	return s.Ping(ctx)
}

// checkServer is called for each new connection of the pool, before it is used. A restart, a failover and a recovery
// end all connections, so nothing is read from another server before this check.
func (s *Store) checkServer(ctx context.Context, conn *pgx.Conn) error {
	current, err := readServerIdentity(ctx, conn)

	switch known, _ := s.incarnation.known(); {
	case sqlState(err) == codeUndefinedFunction:
		// The schema is that of an earlier version. Ping reports this.
		return nil
	case err != nil:
		return fmt.Errorf("read identity of the database's server: %w", err)
	case current == known:
		return nil
	}

	return s.enterIncarnation(ctx, conn)
}

// handleRestore drops the reports of all adapters after a query has found that the database was restored from a dump. It returns
// false if ctx ends before the reports are dropped, and then continues in the background.
func (s *Store) handleRestore(ctx context.Context) bool {
	done := s.incarnation.group.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
		defer cancel()

		return nil, s.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return s.enterIncarnation(ctx, conn.Conn()) })
	})

	select {
	case <-ctx.Done():
		return false
	case result := <-done:
		if result.Err != nil {
			s.options.Log.Error("could not drop the reports from before the database was restored", "error", result.Err)
		}

		return result.Err == nil
	}
}

// enterIncarnation records the current incarnation of the database. It first drops all reports, unless it is certain
// that no change was lost since the previous one.
func (s *Store) enterIncarnation(parent context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(parent, dropTimeout)
	defer cancel()

	var (
		current serverIdentity
		why     string
		dropped int64
	)

	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "set local statement_timeout = 0"); err != nil {
			return err
		}

		// The lock makes other replicas wait until the reports are dropped.
		previous, err := queryOne(ctx, tx, pgx.RowToStructByName[recordedIncarnation], `-- name: LockIncarnation
select i.server, i.started, i.is_dropped, i.xmin::text = i.written_by as is_own from incarnation i for update`)
		if err != nil {
			return err
		}

		if current, err = readServerIdentity(ctx, tx); err != nil {
			return err
		}

		if why, err = s.findLoss(ctx, tx, previous, current); err != nil {
			return err
		}

		if why == "" && previous.IsOwn && previous.serverIdentity == current {
			return nil
		}

		if why != "" {
			if dropped, err = s.dropReports(ctx, tx); err != nil {
				return err
			}
		}

		_, err = tx.Exec(ctx, `-- name: WriteIncarnation
update incarnation set written_by = pg_current_xact_id()::xid::text, server = $1, started = $2, is_dropped = $3`,
			current.Server, current.Started, why != "")

		return err
	})
	if err != nil {
		return fmt.Errorf("check whether the database was restored: %w", classifyError(err))
	}

	s.incarnation.set(current, why != "")

	if dropped > 0 {
		s.options.Log.Warn("dropped all reports, because changes may be lost: the adapters report again",
			"why", why, "resources", dropped)
		s.announce()
	}

	return nil
}

// findLoss returns why changes may be lost, or an empty string if none are.
func (s *Store) findLoss(
	ctx context.Context, to querier, previous recordedIncarnation, current serverIdentity,
) (string, error) {
	isHandled := previous.serverIdentity == current
	_, latest := s.incarnation.known()

	switch {
	case !previous.IsOwn:
		return "the database was restored from a dump", nil
	case previous.Server != current.Server:
		return "the database is on another server, or was recovered to a point in time", nil
	case isHandled && previous.IsDropped:
		return "", nil
	case latest == nil && isHandled:
		return "", nil
	case latest == nil:
		return "the database's server was restarted while the API did not run", nil
	}

	position, err := readPosition(ctx, to, *latest, 0)
	if err != nil || position.IsKnown {
		return "", err
	}

	return "the newest change that was read does not exist any more", nil
}

func (s *Store) dropReports(ctx context.Context, to querier) (int64, error) {
	// Requests lock a resource before anything that depends on it.
	if _, err := to.Exec(ctx, "-- name: LockResources\nlock table resources in exclusive mode"); err != nil {
		return 0, err
	}

	return queryOne(ctx, to, pgx.RowTo[int64], `-- name: DropReports
with gone as (
    delete from statuses returning statuses.resource_id
), changed as (
    update resources
    set reported = '{}', conditions = (
        select coalesce(jsonb_object_agg(c.key, case when c.key <> 'Reconciled' then c.value else c.value
            || jsonb_build_object('status', 'False', 'reason', $1::text, 'message', $2::text, 'observed_generation', 0)
            || case when c.value ->> 'status' = 'False' then '{}'
                else jsonb_build_object('last_transition_time', $3::timestamptz) end
        end), '{}')
        from jsonb_each(resources.conditions) c where c.key in ('Reconciled', 'LastKnownReconciled')
    )
    where resources.id in (select gone.resource_id from gone) or resources.conditions @> '{"Reconciled": {"status": "True"}}'
    returning resources.*
), recorded as (
    insert into changes (kind, resource_id, owner_id, tenancy, generation, operation)
    select changed.kind, changed.id, changed.owner_id, changed.tenancy, changed.generation, 'status' from changed
    returning 1
)
select count(*) from recorded`, conditions.ReasonDatabaseRestored, restoredMessage, normalizeTime(s.options.Clock.Now()))
}
