// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/hyperfleet/hyperfleet/kit/pgproc"
	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/test/lease"
)

const (
	// admin is the database that others are made from.
	admin = "postgres"
	// adminTimeout bounds what is done around a test.
	adminTimeout = time.Minute
	// copyTries and copyPause are for a model that somebody is connected to.
	copyTries = 100
	copyPause = 20 * time.Millisecond
)

// LeaseKind is the kind of server that a lease of a run's PostgreSQL asks for; it tells a
// Lease.
const LeaseKind = "PostgreSQL"

// Lease is what a run of tests tells of its PostgreSQL.
type Lease struct {
	// URL of the database postgres, with the superuser's password.
	URL string
}

// Server is a running PostgreSQL.
type Server struct {
	url string
	// lease is what it is held by, if it is a run's; else own is the process, in dir.
	lease *lease.Lease
	own   *pgproc.Server
	dir   string

	mu sync.Mutex
	// filled is the database that Like copies.
	filled string
}

// Start starts a server of its own for one test, which may trouble it, and stops it at the
// test's end. It fails the test, and does not skip it, when PostgreSQL is not installed.
func Start(t testing.TB) *Server {
	t.Helper()

	return forTest(t, begin)
}

// forTest gives a test a server, and gives it up at the test's end.
func forTest(t testing.TB, get func(context.Context) (*Server, error)) *Server {
	t.Helper()

	server, err := get(context.Background())
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := server.stop(); err != nil {
			t.Error(err)
		}
	})

	return server
}

// Database makes an empty database for one test, on the server that other test programs use as well, and returns
// its URL, which has a password in it.
func Database(t testing.TB) string {
	t.Helper()

	return forTest(t, have).Database(t)
}

// Main hands a server that other test programs use as well to use, runs the tests, and
// exits with their code.
func Main(m *testing.M, use func(*Server)) { os.Exit(Run(m, use)) }

// Run is Main that returns the exit code, for a TestMain with more to do.
func Run(m *testing.M, use func(*Server)) int {
	return With(func(server *Server) int {
		use(server)

		return m.Run()
	})
}

// With has a server for run, and gives what run gave, or 1 if PostgreSQL did not start
// or did not end well.
func With(run func(*Server) int) int {
	server, err := have(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)

		return 1
	}

	code := run(server)

	if err := server.stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)

		return 1
	}

	return code
}

// have gets the run's server, or starts one where there is no run.
func have(ctx context.Context) (*Server, error) {
	var given Lease

	held, err := lease.Take(LeaseKind, &given)
	if err != nil {
		return nil, fmt.Errorf("get a test database: %w", err)
	}

	if held != nil {
		return &Server{url: given.URL, lease: held}, nil
	}

	return begin(ctx)
}

func begin(ctx context.Context) (*Server, error) {
	dir, err := os.MkdirTemp("", "hyperfleet-postgres-")
	if err != nil {
		return nil, fmt.Errorf("start test database: %w", err)
	}

	running, err := pgproc.Start(ctx, pgproc.Options{Dir: dir})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}

	return &Server{url: running.URL(admin), own: running, dir: dir}, nil
}

func (s *Server) stop() error {
	if s.lease != nil {
		var err error
		if s.filled != "" {
			err = s.execute("drop database " + s.filled + " with (force)")
		}

		return errors.Join(err, s.lease.Release())
	}

	return errors.Join(s.own.Stop(), os.RemoveAll(s.dir))
}

// URL returns the URL of a database, which has a password in it.
func (s *Server) URL(database string) string {
	parsed, err := url.Parse(s.url)
	if err != nil {
		panic(err) // it was made by this package's peer
	}

	parsed.Path = "/" + database

	return parsed.String()
}

// Process is the server's, which Start started.
func (s *Server) Process() *procrun.Process { return s.own.Process() }

// Database makes an empty database for one test, dropped at its end, and returns its
// URL, which has a password in it.
func (s *Server) Database(t testing.TB) string {
	t.Helper()

	return s.copyOf(t, "template1")
}

// Like is Database with what fill puts into the first one: tables take longer to make than to copy.
func (s *Server) Like(t testing.TB, fill func(url string) error) string {
	t.Helper()

	model, err := s.model(fill)
	if err != nil {
		t.Fatal(err)
	}

	return s.copyOf(t, model)
}

// model is the name of the database that others are copied from.
func (s *Server) model(fill func(url string) error) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.filled == "" {
		name := newName()
		if err := errors.Join(s.execute("create database "+name), fill(s.URL(name))); err != nil {
			return "", fmt.Errorf("fill database: %w", err)
		}

		s.filled = name
	}

	return s.filled, nil
}

func (s *Server) copyOf(t testing.TB, model string) string {
	t.Helper()

	name := newName()

	// Who was connected to the model may take a moment to go.
	err := s.execute("create database " + name + " template " + model)
	for tries := 1; err != nil && tries < copyTries; tries++ {
		time.Sleep(copyPause)

		err = s.execute("create database " + name + " template " + model)
	}

	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		// Whoever is still connected is what the test left behind.
		if err := s.execute("drop database " + name + " with (force)"); err != nil {
			t.Error(err)
		}
	})

	return s.URL(name)
}

func newName() string { return "test_" + strings.ReplaceAll(uuid.NewString(), "-", "") }

// Bounce kills the server, which Start started, and starts it again with the same data at the same address.
func (s *Server) Bounce(t testing.TB) {
	t.Helper()

	// The server lives on after the test, so not on its context.
	if err := s.own.Restart(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func (s *Server) execute(statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()

	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return fmt.Errorf("connect to test database: %w", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing is left to say on it

	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}

	return nil
}
