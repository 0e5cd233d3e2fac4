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
	"github.com/hyperfleet/hyperfleet/platform/store/db"
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
	server db.ServerIdentityRow
	// latest is the position of the newest change that this process has seen. It is nil if there is none.
	latest *cursor
	group  singleflight.Group
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

func (i *incarnation) known() (db.ServerIdentityRow, *cursor) {
	i.mu.Lock()
	defer i.mu.Unlock()

	return i.server, i.latest
}

func (i *incarnation) set(server db.ServerIdentityRow, isDropped bool) {
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
	current, err := db.New(conn).ServerIdentity(ctx)

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
		current db.ServerIdentityRow
		why     string
		dropped int64
	)

	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "set local statement_timeout = 0"); err != nil {
			return err
		}

		queries := db.New(tx)

		// The lock makes other replicas wait until the reports are dropped.
		previous, err := queries.LockIncarnation(ctx)
		if err != nil {
			return err
		}

		if current, err = queries.ServerIdentity(ctx); err != nil {
			return err
		}

		if why, err = s.findLoss(ctx, queries, previous, current); err != nil {
			return err
		}

		if why == "" && previous.IsOwn && previous.Server == current.Server && previous.Started == current.Started {
			return nil
		}

		if why != "" {
			if dropped, err = s.dropReports(ctx, queries); err != nil {
				return err
			}
		}

		return queries.WriteIncarnation(ctx, db.WriteIncarnationParams{
			Server: current.Server, Started: current.Started, IsDropped: why != "",
		})
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
	ctx context.Context, queries *db.Queries, previous db.LockIncarnationRow, current db.ServerIdentityRow,
) (string, error) {
	isHandled := previous.Server == current.Server && previous.Started == current.Started
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

	position, err := queries.FeedPosition(ctx, db.FeedPositionParams{AfterSeq: latest.seq, AfterToken: latest.token})
	if err != nil || position.IsKnown {
		return "", err
	}

	return "the newest change that was read does not exist any more", nil
}

func (s *Store) dropReports(ctx context.Context, queries *db.Queries) (int64, error) {
	// Requests lock a resource before anything that depends on it.
	if err := queries.LockResources(ctx); err != nil {
		return 0, err
	}

	return queries.DropReports(ctx, db.DropReportsParams{
		Reason: conditions.ReasonDatabaseRestored, Message: restoredMessage, Now: normalizeTime(s.options.Clock.Now()),
	})
}
