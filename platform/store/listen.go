// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	channel = "hyperfleet_changes"

	listenPause = time.Second
	// listenSilence is after how long without a word the connection is asked whether it
	// is still there.
	listenSilence = 30 * time.Second
)

// waker tells any number of waiters that the feed may have changed.
type waker struct {
	mu    sync.Mutex
	woken chan struct{}
}

// next is closed at the next wake.
func (w *waker) next() <-chan struct{} {
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

// listen wakes waiters at each change until ctx ends. While there is no connection they
// look by themselves now and then.
func (s *Store) listen(ctx context.Context, config *pgx.ConnConfig) {
	defer close(s.ended)

	// The connection waits as long as it takes, and its queries count as nobody's.
	delete(config.RuntimeParams, "statement_timeout")
	delete(config.RuntimeParams, "idle_in_transaction_session_timeout")
	config.Tracer = nil

	for ctx.Err() == nil {
		err := s.listenOnce(ctx, config)
		if ctx.Err() != nil {
			return
		}

		s.options.Log.Warn("does not hear of changes and looks for them instead", "error", err)

		if retry.Pause(ctx, s.options.Clock, listenPause) != nil {
			return
		}
	}
}

func (s *Store) listenOnce(ctx context.Context, config *pgx.ConnConfig) error {
	conn, err := s.startListening(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it has said why already

	// What happened before it listened.
	s.waker.wake()

	for {
		err := waitFor(ctx, listenSilence, func(ctx context.Context) error {
			heard, err := conn.WaitForNotification(ctx)
			if err == nil && heard.Payload != s.id {
				s.waker.wake()
			}

			return err
		})

		switch {
		case err == nil:
		case ctx.Err() == nil && (pgconn.Timeout(err) || errors.Is(err, context.DeadlineExceeded)):
			if err := waitFor(ctx, s.options.Timeout, conn.Ping); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

func (s *Store) startListening(parent context.Context, config *pgx.ConnConfig) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(parent, s.options.Timeout)
	defer cancel()

	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}

	if _, err := conn.Exec(ctx, "listen "+channel); err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}

	return conn, nil
}

func waitFor(parent context.Context, limit time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(parent, limit)
	defer cancel()

	return do(ctx)
}

// announce wakes who waits for changes, here and at other replicas.
func (s *Store) announce() {
	s.waker.wake()

	select {
	case s.unannounced <- struct{}{}:
	default:
	}
}

// keepAnnouncing tells other replicas of changes until ctx ends. It does so after they
// are committed: a transaction that notifies waits at its end for all others that do.
// When the word is lost, others see the change when they next look.
func (s *Store) keepAnnouncing(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.unannounced:
		}

		err := waitFor(ctx, s.options.Timeout, func(ctx context.Context) error {
			return s.queries.AnnounceChanges(ctx, s.id)
		})
		if err != nil && ctx.Err() == nil {
			s.options.Log.Warn("could not tell other replicas of changes, which they see when they next look", "error", err)
		}
	}
}
