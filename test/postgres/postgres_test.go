// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hyperfleet/hyperfleet/kit/pgproc"
	"github.com/hyperfleet/hyperfleet/test/postgres"
)

func connect(t *testing.T, address string) *pgx.Conn {
	t.Helper()

	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = conn.Close(context.Background()) })

	return conn
}

func TestDatabasesAreApart(t *testing.T) {
	server := postgres.Start(t)
	one, other := server.Database(t), server.Database(t)

	if _, err := connect(t, one).Exec(t.Context(), "create table things (id int)"); err != nil {
		t.Fatal(err)
	}

	var tables int
	if err := connect(t, other).QueryRow(t.Context(), "select count(*) from pg_tables where tablename = 'things'").
		Scan(&tables); err != nil {
		t.Fatal(err)
	}

	if tables != 0 {
		t.Error("the table of one database is in another")
	}
}

func TestTheServerWantsItsPassword(t *testing.T) {
	server := postgres.Start(t)

	address, err := url.Parse(server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}

	address.User = url.UserPassword(address.User.Username(), "wrong")

	if conn, err := pgx.Connect(t.Context(), address.String()); err == nil {
		_ = conn.Close(t.Context())

		t.Error("a wrong password was taken")
	}
}

func TestDataOutlivesARestart(t *testing.T) {
	server := postgres.Start(t)
	address := server.Database(t)

	if _, err := connect(t, address).Exec(t.Context(), "create table things (id int)"); err != nil {
		t.Fatal(err)
	}

	server.Bounce(t)

	if _, err := connect(t, address).Exec(t.Context(), "insert into things values (1)"); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}

func TestTheServerEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	dir, err := os.MkdirTemp("", "hyperfleet-postgres-") //nolint:usetesting // t.TempDir is closed to the server's user
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)

	server, err := pgproc.Start(ctx, pgproc.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}

	cancel()

	select {
	case <-server.Process().Done():
	case <-time.After(time.Minute):
		t.Fatal("the server still runs")
	}

	if err := syscall.Kill(server.Process().PID(), 0); err == nil {
		t.Error("the server's process is still there")
	}
}

func TestNoPostgresSaysWhatToDo(t *testing.T) {
	_, err := pgproc.Start(t.Context(), pgproc.Options{Dir: t.TempDir(), BinDir: filepath.Join(t.TempDir(), "none")})
	if err == nil || !strings.Contains(err.Error(), "initdb") {
		t.Errorf("start without programs: %v, want an error that names initdb", err)
	}
}
