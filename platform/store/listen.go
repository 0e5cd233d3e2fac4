// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	channel = "hyperfleet_changes"

	listenRetryDelay = time.Second
	// rememberInterval is the interval at which the store remembers its newest change.
	rememberInterval = time.Second
	// listenIdleTimeout is the time without a notification after which the connection is checked.
	listenIdleTimeout = 30 * time.Second
)

// listen wakes waiters at each change until ctx ends. While it has no connection, waiters only
// poll.
func (s *Store) listen(ctx context.Context) {
	defer close(s.listenerDone)

	for ctx.Err() == nil {
		err := s.listenOnce(ctx)
		if ctx.Err() != nil {
			return
		}

		s.options.Log.Warn("could not listen for changes: poll for them until the next attempt", "error", err)

		if retry.Sleep(ctx, s.options.Clock, listenRetryDelay) != nil {
			return
		}
	}
}

// listenOnce wakes the waiters at each notification of another replica, until the connection fails or ctx
// ends. After listenIdleTimeout without a notification, it checks
// that the server can still write, because nobody writes to another one.
func (s *Store) listenOnce(parent context.Context) error {
	ctx, stop := context.WithCancel(parent)
	defer stop()

	s.stopListening.Store(&stop)

	conn, err := s.startListening(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the caller gets the earlier error

	// Wake once, because no notification arrives for changes that were committed before the listening started.
	s.waker.wake()

	for {
		err := runWithTimeout(ctx, listenIdleTimeout, func(ctx context.Context) error {
			notification, err := conn.WaitForNotification(ctx)
			if err == nil && notification.Payload != s.id {
				s.waker.wake()
			}

			return err
		})

		switch {
		case err == nil:
		case ctx.Err() == nil && (pgconn.Timeout(err) || errors.Is(err, context.DeadlineExceeded)):
			err := runWithTimeout(ctx, s.options.Timeout, func(ctx context.Context) error {
				return pgconn.ValidateConnectTargetSessionAttrsReadWrite(ctx, conn.PgConn())
			})
			if err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// endListening ends the connection that listens, so that the next one goes to the current server.
func (s *Store) endListening() {
	if stop := s.stopListening.Load(); stop != nil {
		(*stop)()
	}
}

func (s *Store) startListening(parent context.Context) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(parent, s.options.Timeout)
	defer cancel()

	config := s.readConfig()

	// The connection waits without a timeout, and its queries are not counted.
	delete(config.RuntimeParams, "statement_timeout")
	delete(config.RuntimeParams, "idle_in_transaction_session_timeout")
	config.Tracer = nil

	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}

	if _, err := conn.Exec(ctx, "listen "+channel); err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}

	return conn, nil
}

func runWithTimeout(parent context.Context, limit time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(parent, limit)
	defer cancel()

	return do(ctx)
}

// runAnnouncer notifies other replicas of changes until ctx ends. The notification is sent after
// the commit, because a transaction that notifies waits at its commit for all other transactions
// that notify. If a notification is lost, the other replicas find the change with their next poll.
func (s *Store) runAnnouncer(ctx context.Context) {
	ticker := s.options.Clock.NewTicker(rememberInterval)
	defer ticker.Stop()

	hasNewChanges := false

	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			if hasNewChanges {
				// The store remembers its own changes, to notice their loss.
				_, err := s.readCurrentCursor(ctx)
				hasNewChanges = err != nil
			}

			continue
		case <-s.pendingAnnouncement:
			hasNewChanges = true
		}

		err := s.runRepeatable(ctx, func(ctx context.Context) error {
			_, err := s.pool.Exec(ctx, "-- name: AnnounceChanges\nselect pg_notify($1, $2)", channel, s.id)

			return err
		})
		if err != nil && ctx.Err() == nil {
			s.options.Log.Warn("could not notify other replicas of changes: they find them with their next poll", "error", err)
		}
	}
}
