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
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/metrics"
)

const (
	defaultTimeout     = 10 * time.Second
	defaultChangesKept = 24 * time.Hour

	// minConns and connsPerProcessor decide the number of connections if none is configured. If
	// PostgreSQL has more connections than processors, they only wait for each other. Each
	// connection also costs a process with its own plans, which would be started during the load
	// peak that needs it.
	minConns          = 4
	connsPerProcessor = 2
)

// Options configure Open.
type Options struct {
	// URL is the URL of the database with its password. Required.
	URL string
	// ReadURL returns the current URL. It is called before each new connection, so that the password,
	// the CA and the server can change without a restart. While it fails, or returns an invalid URL, the
	// last valid one is used. Default: URL.
	ReadURL func() (string, error)
	// MaxConns is the maximum number of connections of this process, without the one that listens
	// for changes. Default: two for each processor and one more, but at least 4.
	MaxConns int32
	// Timeout limits each transaction, including retries. Default: 10s.
	Timeout time.Duration
	// ChangesRetention is how long changes stay in the feed. Default: 24h.
	ChangesRetention time.Duration
	// Clock times the store's background work. Default: the real clock. Leases and the age of
	// changes use the database's clock.
	Clock clock.WithTicker
	// Log gets errors that no caller gets. Default: no log.
	Log *slog.Logger
	// Calls counts and times queries with the system "postgres". Default: they are not counted.
	Calls *metrics.CallMetrics
}

func (o *Options) setDefaults() {
	if o.MaxConns <= 0 {
		o.MaxConns = max(minConns, int32(connsPerProcessor*runtime.GOMAXPROCS(0)+1)) //nolint:gosec // no machine has so many processors
	}

	o.Timeout = cmp.Or(max(o.Timeout, 0), defaultTimeout)
	o.ChangesRetention = cmp.Or(max(o.ChangesRetention, 0), defaultChangesKept)
	o.Clock = cmp.Or[clock.WithTicker](o.Clock, clock.RealClock{})
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
}

// Store has the state of the fleet API. Its methods are safe for concurrent use.
type Store struct {
	options Options
	pool    *pgxpool.Pool
	// lastConfig is the configuration of the last valid URL.
	lastConfig atomic.Pointer[pgx.ConnConfig]
	// leaveServer closes the connections to the server of the last URL. It is nil until the pool exists.
	leaveServer atomic.Pointer[func()]
	// id distinguishes this store's notifications from those of other replicas.
	id    string
	waker *waker
	// stopListening ends the connection that listens for changes.
	stopListening atomic.Pointer[context.CancelFunc]
	// listenerDone is closed when waiters are no longer woken.
	listenerDone chan struct{}
	// pendingAnnouncement holds one value if other replicas have to be notified.
	pendingAnnouncement chan struct{}
	incarnation         incarnation

	stop       context.CancelFunc
	background sync.WaitGroup
}

// Open connects to the database and updates its schema. If several replicas do this at the same
// time, one migrates and the others wait. Ctx only limits Open; the store works until Close.
func Open(ctx context.Context, options Options) (*Store, error) {
	options.setDefaults()

	config, err := poolConfig(options)
	if err != nil {
		return nil, err
	}

	if err := migrate(ctx, config.ConnConfig.Copy()); err != nil {
		return nil, err
	}

	backgroundCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	s := &Store{
		options: options, id: rand.Text(),
		waker: &waker{woken: make(chan struct{})}, listenerDone: make(chan struct{}), stop: stop,
		pendingAnnouncement: make(chan struct{}, 1),
	}

	s.lastConfig.Store(config.ConnConfig.Copy())

	config.AfterConnect = s.checkServer
	config.BeforeConnect = s.refresh

	s.pool, err = pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		stop()

		return nil, fmt.Errorf("open database: %w", err)
	}

	leave := func() {
		s.pool.Reset()
		s.endListening()
	}
	s.leaveServer.Store(&leave)

	if err := s.openIncarnation(ctx); err != nil {
		stop()
		s.pool.Close()

		return nil, err
	}

	s.background.Go(func() { s.listen(backgroundCtx) })
	s.background.Go(func() { s.runAnnouncer(backgroundCtx) })
	s.background.Go(func() { s.runPruner(backgroundCtx) })

	return s, nil
}

// refresh replaces the configuration of a new connection of the pool with that of the current URL.
func (s *Store) refresh(_ context.Context, config *pgx.ConnConfig) error {
	timeout := config.ConnectTimeout // the pool limits the time if the URL does not
	*config = *s.readConfig()
	config.ConnectTimeout = cmp.Or(config.ConnectTimeout, timeout)

	return nil
}

// readConfig returns a configuration with the current URL, or with the last valid one. If the URL has another server or
// database, readConfig also ends the connections to the last one, because nothing may be written to both.
func (s *Store) readConfig() *pgx.ConnConfig {
	if s.options.ReadURL == nil {
		return s.lastConfig.Load().Copy()
	}

	current, err := s.parseCurrentURL()
	if err != nil {
		s.options.Log.Warn("could not read the URL of the database again: use the last one", "error", err)

		return s.lastConfig.Load().Copy()
	}

	last := s.lastConfig.Swap(current)
	if leave := s.leaveServer.Load(); leave != nil && !isSameDatabase(last, current) {
		(*leave)()
	}

	return current.Copy()
}

func (s *Store) parseCurrentURL() (*pgx.ConnConfig, error) {
	options := s.options

	var err error
	if options.URL, err = options.ReadURL(); err != nil {
		return nil, err
	}

	config, err := poolConfig(options)
	if err != nil {
		return nil, err
	}

	return config.ConnConfig, nil
}

func isSameDatabase(a, b *pgx.ConnConfig) bool {
	isSameServer := func(a, b *pgconn.FallbackConfig) bool { return a.Host == b.Host && a.Port == b.Port }

	return a.Host == b.Host && a.Port == b.Port && a.Database == b.Database &&
		slices.EqualFunc(a.Fallbacks, b.Fallbacks, isSameServer)
}

// Close stops requests that wait for changes, waits for running transactions, and closes the
// connections.
func (s *Store) Close() {
	s.stop()
	s.background.Wait()
	s.pool.Close()
}

// errProbed rolls a probe back.
var errProbed = errors.New("the database can be written")

// Ping returns an error if the database can't be used now. It writes and rolls back, because the server can
// allow only reads, for example after a failover. The schema can be that of an earlier version after a restore.
func (s *Store) Ping(parent context.Context) error {
	err := s.runRepeatable(parent, func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			_, errProbe := tx.Exec(ctx, `-- name: Probe
insert into leases (name, holder, expires_at) values ($1, '', clock_timestamp())`, "probe/"+s.id)
			errSchema := checkSchema(ctx, tx)
			_, errIncarnation := tx.Exec(ctx, "-- name: CheckIncarnation\nselect check_incarnation()")

			return cmp.Or(errProbe, errSchema, errIncarnation, errProbed)
		})
	})
	if !errors.Is(err, errProbed) {
		return fmt.Errorf("write to database: %w", err)
	}

	return nil
}

// poolConfig returns the configuration of the connections. It returns an error without the URL's text,
// because the URL may contain a password.
func poolConfig(options Options) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(options.URL)
	if err != nil {
		// The library's error hides the password only if it can find it, which is not the case if the
		// text is not a URL.
		return nil, errors.New("open database: the URL is invalid: write postgres://USER:PASSWORD@HOST:PORT/DATABASE, " +
			"percent-encode special characters in the password, and check that the files that it names, such as sslrootcert, are valid")
	}

	config.MaxConns = options.MaxConns

	// A connection that can only read would stay in the pool after the server can write again.
	if config.ConnConfig.ValidateConnect == nil {
		config.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}

	params := config.ConnConfig.RuntimeParams
	millis := strconv.FormatInt(options.Timeout.Milliseconds(), 10)

	// The server has the same timeout, so no transaction holds locks or blocks the feed for longer.
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

// runRepeatable runs queries that have the same result if they are run twice. It runs them again if prepareRetry permits it.
func (s *Store) runRepeatable(parent context.Context, run func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(parent, s.options.Timeout)
	defer cancel()

	err := run(ctx)
	if err != nil && ctx.Err() == nil && s.prepareRetry(ctx, err, notCommitting) {
		err = run(ctx)
	}

	return classifyError(err)
}

// runSnapshot runs queries that only read and that see the same snapshot of the database.
func (s *Store) runSnapshot(parent context.Context, run func(ctx context.Context, tx pgx.Tx) error) error {
	return s.runRepeatable(parent, func(ctx context.Context) error {
		options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}

		return pgx.BeginTxFunc(ctx, s.pool, options, func(tx pgx.Tx) error { return run(ctx, tx) })
	})
}

// notCommitting is the value of isCommitting for functions that commit nothing, or that may commit twice.
const notCommitting = false

// prepareRetry returns true if a failed function may be run again, after it has made this possible. isCommitting is true if
// the error comes from a commit, which may have succeeded.
func (s *Store) prepareRetry(ctx context.Context, err error, isCommitting bool) bool {
	switch {
	case sqlState(err) == codeRestored:
		return s.handleRestore(ctx)
	case sqlState(err) == codeReadOnly:
		s.pool.Reset() // after a failover, all connections may still lead to the former primary

		return true
	case isConnectionLost(err):
		s.pool.Reset() // after a restart of the server, no connection works

		return !isCommitting
	default:
		return isRepeatable(err)
	}
}
