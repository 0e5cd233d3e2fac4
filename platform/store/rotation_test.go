// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/hyperfleet/hyperfleet/platform/store"
	"github.com/hyperfleet/hyperfleet/test/fleetapi"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// TestPasswordIsRotated checks that a store connects with the current URL of the database, so that nobody has to restart
// the API after a change of its password, and that it keeps the last URL while the file is unreadable or has another text.
func TestPasswordIsRotated(t *testing.T) {
	address := fleetapi.NewDatabase(t, server)
	role := "rotated_" + databaseOf(t, address)

	ctx := context.Background()
	admin, err := pgx.Connect(ctx, address)
	must.Do(t, err)

	execute := func(statement string) {
		t.Helper()

		_, err := admin.Exec(ctx, statement)
		must.Do(t, err)
	}

	execute("create role " + role + " superuser login password 'first'")
	t.Cleanup(func() {
		execute("drop role " + role)
		must.Do(t, admin.Close(ctx))
	})

	var (
		current    atomic.Value
		unreadable atomic.Bool
	)

	withPassword := func(password string) string {
		out, err := url.Parse(address)
		must.Do(t, err)

		out.User = url.UserPassword(role, password)

		return out.String()
	}
	current.Store(withPassword("first"))

	s, err := store.Open(ctx, store.Options{URL: withPassword("first"), Timeout: waitTimeout, ReadURL: func() (string, error) {
		if unreadable.Load() {
			return "", errors.New("the file is unreadable")
		}

		text, _ := current.Load().(string)

		return text, nil
	}})
	must.Do(t, err)
	t.Cleanup(s.Close)

	const disconnect = "select pg_terminate_backend(pid) from pg_stat_activity where usename = '"

	execute("alter role " + role + " password 'second'")
	execute(disconnect + role + "'")

	if err := s.Ping(ctx); err == nil || !strings.Contains(err.Error(), "password authentication failed") {
		t.Errorf("before the new URL: error %v", err)
	}

	current.Store(withPassword("second"))

	if err := s.Ping(ctx); err != nil {
		t.Errorf("with the new URL: %v", err)
	}

	for name, spoil := range map[string]func(){
		"an unreadable file": func() { unreadable.Store(true) },
		"half of a URL":      func() { unreadable.Store(false); current.Store("postgres://%") },
	} {
		spoil()
		execute(disconnect + role + "'")

		if err := s.Ping(ctx); err != nil {
			t.Errorf("with %s: %v", name, err)
		}
	}
}

// TestDatabaseIsReplaced checks that a store uses only the database of the new URL after its first connection to it,
// although connections to the former one are open.
func TestDatabaseIsReplaced(t *testing.T) {
	ctx := context.Background()
	former, next := fleetapi.NewDatabase(t, server), fleetapi.NewDatabase(t, server)
	openStore(t, next) // creates the schema

	var current atomic.Value

	current.Store(former)

	s, err := store.Open(ctx, store.Options{URL: former, Timeout: waitTimeout, ReadURL: func() (string, error) {
		text, _ := current.Load().(string)

		return text, nil
	}})
	must.Do(t, err)
	t.Cleanup(s.Close)

	admin, err := pgx.Connect(ctx, former)
	must.Do(t, err)
	t.Cleanup(func() { must.Do(t, admin.Close(ctx)) })

	count := func(condition string) int {
		t.Helper()

		var found int

		row := admin.QueryRow(ctx, "select count(*) from pg_stat_activity where datname = current_database() and "+
			"application_name = 'hyperfleet-api' and "+condition)
		must.Do(t, row.Scan(&found))

		return found
	}

	lock, err := admin.Begin(ctx)
	must.Do(t, err)

	_, err = lock.Exec(ctx, "lock table leases")
	must.Do(t, err)

	blocked := make(chan error, 1)

	go func() { blocked <- s.Ping(ctx) }()

	timing.WaitUntil(t, "a transaction waits in the former database", func() bool { return count("wait_event_type = 'Lock'") == 1 })

	current.Store(next)

	if err := s.Ping(ctx); err != nil {
		t.Errorf("with the new URL: %v", err)
	}

	must.Do(t, lock.Rollback(ctx))

	if err := <-blocked; err != nil {
		t.Errorf("the transaction that was running: %v", err)
	}

	timing.WaitUntil(t, "no connection to the former database is open", func() bool { return count("true") == 0 })
}
