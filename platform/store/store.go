// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/platform/store/db"
)

const (
	defaultTimeout     = 10 * time.Second
	defaultChangesKept = 24 * time.Hour

	// minConns and connsPerProcessor say how many connections there are where no number is
	// given. More than PostgreSQL has processors for wait for each other, and each costs a
	// process and plans of its own, in the middle of the very burst that asks for it.
	minConns          = 4
	connsPerProcessor = 2

	// txTries is how often a transaction that PostgreSQL ended for the sake of another is
	// run.
	txTries = 10
)

// Options say how the database is used.
type Options struct {
	// URL of the database, with its password. Required.
	URL string
	// MaxConns bounds the connections of this process, one more that listens for changes
	// apart. Default: two for each processor and one more, at least 4.
	MaxConns int32
	// Timeout bounds each transaction, retries included. Default: 10s.
	Timeout time.Duration
	// ChangesKept is for how long the change feed goes back. Default: 24h.
	ChangesKept time.Duration
	// Clock paces what the store does by itself. Default: the real one. Leases and the
	// change feed's age go by the database's clock.
	Clock clock.WithTicker
	// Log hears of trouble that no caller is told. Default: it is discarded.
	Log *slog.Logger
	// Calls counts and times queries as system postgres. Default: nobody does.
	Calls *metrics.Calls
}

func (o *Options) complete() {
	if o.MaxConns <= 0 {
		o.MaxConns = max(minConns, int32(connsPerProcessor*runtime.GOMAXPROCS(0)+1)) //nolint:gosec // no machine has that many
	}

	o.Timeout = cmp.Or(max(o.Timeout, 0), defaultTimeout)
	o.ChangesKept = cmp.Or(max(o.ChangesKept, 0), defaultChangesKept)
	o.Clock = cmp.Or[clock.WithTicker](o.Clock, clock.RealClock{})
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
}

// Store is the state of the fleet API. Its methods may be called from any goroutine.
type Store struct {
	options Options
	pool    *pgxpool.Pool
	queries *db.Queries
	// id tells this store's announcements from those of others.
	id    string
	waker *waker
	// ended is closed when nobody is woken any more.
	ended chan struct{}
	// unannounced holds one value when there are changes to announce.
	unannounced chan struct{}

	stop       context.CancelFunc
	background sync.WaitGroup
}

// Open connects to the database and brings its schema up to date; of several replicas
// that do so at once, one does and the others wait. Ctx bounds the opening alone; Close
// ends the store.
func Open(ctx context.Context, options Options) (*Store, error) {
	options.complete()

	config, err := poolConfig(options)
	if err != nil {
		return nil, err
	}

	if err := migrate(ctx, config.ConnConfig.Copy()); err != nil {
		return nil, err
	}

	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}

	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	s := &Store{
		options: options, pool: pool, queries: db.New(pool), id: rand.Text(),
		waker: &waker{woken: make(chan struct{})}, ended: make(chan struct{}), unannounced: make(chan struct{}, 1), stop: stop,
	}

	if err := s.Ping(ctx); err != nil {
		stop()
		pool.Close()

		return nil, err
	}

	s.background.Go(func() { s.listen(life, config.ConnConfig.Copy()) })
	s.background.Go(func() { s.keepAnnouncing(life) })
	s.background.Go(func() { s.keepPruned(life) })

	return s, nil
}

// Close ends what waits for changes and closes the connections; it waits for
// transactions in work.
func (s *Store) Close() {
	s.stop()
	s.background.Wait()
	s.pool.Close()
}

// Ping says why the database can't be used now; nil if it can.
func (s *Store) Ping(parent context.Context) error {
	ctx, cancel := context.WithTimeout(parent, s.options.Timeout)
	defer cancel()

	if err := s.pool.Ping(ctx); err != nil {
		return fmt.Errorf("reach database: %w", explain(err))
	}

	return nil
}

func poolConfig(options Options) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(options.URL)
	if err != nil {
		// The library's words hide the password where they can find it; where the text is
		// no URL at all they can't.
		return nil, errors.New("open database: the URL can't be read: write postgres://USER:PASSWORD@HOST:PORT/DATABASE, " +
			"with what is special in the password percent-encoded")
	}

	config.MaxConns = options.MaxConns

	params := config.ConnConfig.RuntimeParams
	millis := strconv.FormatInt(options.Timeout.Milliseconds(), 10)

	// The server gives up when we do: nothing holds locks, or the change feed, for longer.
	params["statement_timeout"] = millis
	params["idle_in_transaction_session_timeout"] = millis
	params["timezone"] = "UTC"

	if params["application_name"] == "" {
		params["application_name"] = "hyperfleet-api"
	}

	if options.Calls != nil {
		config.ConnConfig.Tracer = &tracer{calls: options.Calls, clock: options.Clock}
	}

	return config, nil
}

// InTx runs what is given in one transaction: it is committed if the function returns
// nil, else rolled back, and the function's error returned. When PostgreSQL ends a
// transaction for the sake of another, or the connection is lost before the commit, it is
// run again, so the function must have no effects but those of tx.
func (s *Store) InTx(parent context.Context, run func(ctx context.Context, tx *Tx) error) error {
	ctx, cancel := context.WithTimeout(parent, s.options.Timeout)
	defer cancel()

	for try := 1; ; try++ {
		changed, committing, err := s.inSession(ctx, run)
		if err == nil && changed {
			s.announce()
		}

		if err == nil || try == txTries || ctx.Err() != nil || !s.again(err, committing) {
			return explain(err)
		}
	}
}

// inSession runs one transaction, and says whether it has changed something, and whether an
// error is that of its commit: what it wrote may then be there.
func (s *Store) inSession(
	ctx context.Context, run func(ctx context.Context, tx *Tx) error,
) (changed, committing bool, err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return false, false, err
	}
	defer conn.Release()

	session := newSession(conn.Conn())
	defer session.rollback(ctx)

	tx := &Tx{queries: db.New(session), later: db.New(asked{&session.unsent}), session: session}
	if err := run(ctx, tx); err != nil {
		return false, false, err
	}

	return tx.changed, true, session.commit(ctx)
}

// read runs queries that change nothing, once more if the connection was lost.
func (s *Store) read(parent context.Context, run func(ctx context.Context, queries *db.Queries) error) error {
	ctx, cancel := context.WithTimeout(parent, s.options.Timeout)
	defer cancel()

	err := run(ctx, s.queries)
	if err != nil && ctx.Err() == nil && s.again(err, false) {
		err = run(ctx, s.queries)
	}

	return explain(err)
}

// snapshot runs queries that change nothing and see one state of the database.
func (s *Store) snapshot(parent context.Context, run func(ctx context.Context, tx pgx.Tx) error) error {
	return s.read(parent, func(ctx context.Context, _ *db.Queries) error {
		options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}

		return pgx.BeginTxFunc(ctx, s.pool, options, func(tx pgx.Tx) error { return run(ctx, tx) })
	})
}

// again says whether to run again what has ended with an error. When the server was
// restarted all connections of before are of no use, and are given up.
func (s *Store) again(err error, committing bool) bool {
	if !committing && lost(err) {
		s.pool.Reset()

		return true
	}

	return repeatable(err)
}
