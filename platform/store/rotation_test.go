// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/hyperfleet/hyperfleet/platform/store"
	"github.com/hyperfleet/hyperfleet/test/fleetapi"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// TestPasswordIsRotated checks that a store connects with the current URL of the database, so that nobody has to restart
// the API after a change of its password, and that it keeps the last URL while the file is unreadable.
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

	var current atomic.Value

	withPassword := func(password string) string {
		out, err := url.Parse(address)
		must.Do(t, err)

		out.User = url.UserPassword(role, password)

		return out.String()
	}
	current.Store(withPassword("first"))

	s, err := store.Open(ctx, store.Options{URL: withPassword("first"), Timeout: waitTimeout, ReadURL: func() (string, error) {
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
}
