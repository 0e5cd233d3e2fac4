// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/hyperfleet/hyperfleet/kit/pgproc"
)

// adminTimeout bounds what is done around a test.
const adminTimeout = time.Minute

// Server is a running PostgreSQL.
type Server struct {
	*pgproc.Server

	dir string
}

// Start starts a server for one test and stops it at the test's end. It fails the
// test, and does not skip it, when PostgreSQL is not installed.
func Start(t testing.TB) *Server {
	t.Helper()

	server, err := start(context.Background())
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

// Main starts a server, hands it to use, runs the tests, stops the server and exits
// with the tests' code.
func Main(m *testing.M, use func(*Server)) { os.Exit(Run(m, use)) }

// Run is Main that returns the exit code, for a TestMain with more to do.
func Run(m *testing.M, use func(*Server)) int {
	return With(func(server *Server) int {
		use(server)

		return m.Run()
	})
}

// With starts a server for run, and gives what run gave, or 1 if PostgreSQL did not start
// or did not end well.
func With(run func(*Server) int) int {
	server, err := start(context.Background())
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

func start(ctx context.Context) (*Server, error) {
	dir, err := os.MkdirTemp("", "hyperfleet-postgres-")
	if err != nil {
		return nil, fmt.Errorf("start test database: %w", err)
	}

	running, err := pgproc.Start(ctx, pgproc.Options{Dir: dir})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}

	return &Server{Server: running, dir: dir}, nil
}

func (s *Server) stop() error { return errors.Join(s.Stop(), os.RemoveAll(s.dir)) }

// Database makes an empty database for one test, dropped at its end, and returns its
// URL, which has a password in it.
func (s *Server) Database(t testing.TB) string {
	t.Helper()

	name := "test_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	if err := s.admin("create database " + name); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		// Whoever is still connected is what the test left behind.
		if err := s.admin("drop database " + name + " with (force)"); err != nil {
			t.Error(err)
		}
	})

	return s.URL(name)
}

// Bounce kills the server and starts it again with the same data at the same address.
func (s *Server) Bounce(t testing.TB) {
	t.Helper()

	// The server lives on after the test, so not on its context.
	if err := s.Restart(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func (s *Server) admin(statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()

	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return fmt.Errorf("connect to test database: %w", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing is left to say on it

	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}

	return nil
}
