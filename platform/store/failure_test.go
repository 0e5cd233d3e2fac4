// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/platform/store"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/postgres"
	"github.com/hyperfleet/hyperfleet/test/scrape"
)

func putLease(t testing.TB, s *store.Store, holder string, ttl time.Duration) openapi.Lease {
	t.Helper()

	lease, err := s.PutLease(context.Background(), "sentinel", holder, ttl)
	must.Do(t, err)

	return lease
}

func TestALeaseHasOneHolder(t *testing.T) {
	s := newStore(t)

	if got := putLease(t, s, "a", time.Hour); got.Holder != "a" || got.ExpiresInSeconds <= 59*60 || got.ExpiresInSeconds > 3600 {
		t.Errorf("a free lease: %+v, want it for an hour", got)
	}

	if got := putLease(t, s, "b", time.Hour); got.Holder != "a" {
		t.Errorf("a request for another holder's lease: %+v", got)
	}

	if got := putLease(t, s, "a", 2*time.Hour); got.Holder != "a" || got.ExpiresInSeconds <= 3600 {
		t.Errorf("renewed: %+v, want it for two hours", got)
	}

	if got := putLease(t, s, "b", 0); got.Holder != "a" {
		t.Errorf("released by another holder: %+v", got)
	}

	if got := putLease(t, s, "a", 0); got.Holder != "" || got.ExpiresInSeconds != 0 {
		t.Errorf("released: %+v, want no holder", got)
	}

	if got := putLease(t, s, "b", time.Hour); got.Holder != "b" {
		t.Errorf("after the release: %+v", got)
	}
}

func TestAnExpiredLeaseIsTakenOver(t *testing.T) {
	s := newStore(t)
	putLease(t, s, "dead", 50*time.Millisecond)

	for deadline := time.Now().Add(waitTimeout); ; {
		got := putLease(t, s, "next", time.Hour)
		if got.Holder == "next" {
			break
		}

		if got.ExpiresInSeconds > 0.05 || time.Now().After(deadline) {
			t.Fatalf("%+v, want the new holder", got)
		}

		time.Sleep(5 * time.Millisecond)
	}

	// The previous holder, whose lease has expired, gets the new holder in the response.
	if got := putLease(t, s, "dead", time.Hour); got.Holder != "next" {
		t.Errorf("%+v, want holder next", got)
	}
}

func TestConcurrentLeaseRequests(t *testing.T) {
	s := newStore(t)

	var (
		group   sync.WaitGroup
		mu      sync.Mutex
		holders = map[string]int{}
	)

	for i := range 20 {
		group.Go(func() {
			lease := putLease(t, s, string(rune('a'+i)), time.Hour)

			mu.Lock()
			defer mu.Unlock()

			holders[lease.Holder]++
		})
	}

	group.Wait()

	if len(holders) != 1 {
		t.Errorf("holders in the responses: %v, want one", holders)
	}
}

// TestDatabaseFailures has its own server, because it stops the server.
func TestDatabaseFailures(t *testing.T) { //nolint:tparallel // its subtests share a server, one after the other
	t.Parallel()

	own := postgres.Start(t)

	t.Run("restart", func(t *testing.T) { testRestart(t, own) })
	t.Run("an unresponsive server is unavailable", func(t *testing.T) { testUnresponsive(t, own) })
}

func testRestart(t *testing.T, own *postgres.Server) {
	t.Helper()

	s := openStore(t, own.NewDatabase(t))
	insert(t, s, newCluster("before"))
	start := readLatestCursor(t, s)
	feeds := make(chan store.Feed, 1)

	own.KillAndRestart(t)

	// The old connections are discarded, and no caller gets an error.
	if found, _ := listNames(t, s, store.ListQuery{}); len(found) != 1 {
		t.Errorf("found %v after the restart", found)
	}

	go func() {
		feed, err := s.Changes(context.Background(), store.ChangeQuery{After: start, Wait: waitTimeout})
		if err != nil {
			t.Error(err)
		}

		feeds <- feed
	}()

	insert(t, s, newCluster("after"))

	if feed := <-feeds; len(feed.Items) != 1 {
		t.Errorf("got %d changes after the restart, want 1", len(feed.Items))
	}
}

func eventually(t testing.TB, do func() error) {
	t.Helper()

	for deadline := time.Now().Add(waitTimeout); ; time.Sleep(10 * time.Millisecond) {
		err := do()
		if err == nil {
			return
		}

		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func testUnresponsive(t *testing.T, own *postgres.Server) {
	t.Helper()

	address := own.NewDatabase(t)

	s, err := store.Open(t.Context(), store.Options{URL: address, Timeout: 3 * time.Second})
	must.Do(t, err)
	defer s.Close()

	// PostgreSQL's child processes have their own process groups, so the test cannot stop them
	// together with the server. Instead, a transaction that holds the row lock does not respond.
	holding, release := make(chan struct{}), make(chan struct{})
	other := openStore(t, address)
	c := insert(t, other, newCluster("c"))[0]

	go func() {
		_ = other.InTx(context.Background(), func(ctx context.Context, tx *store.Tx) error {
			_, err := tx.GetForUpdate(ctx, c.ID)
			close(holding)
			<-release

			return err
		})
	}()

	<-holding

	err = s.InTx(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.GetForUpdate(ctx, c.ID)

		return err
	})
	if !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a lock that is held: error %v, want %v", err, store.ErrUnavailable)
	}

	close(release)

	must.Do(t, own.Process().Signal(syscall.SIGSTOP))

	if _, err := store.Open(withTimeout(t, time.Second), store.Options{URL: address}); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a server without connections: error %v, want %v", err, store.ErrUnavailable)
	}

	must.Do(t, own.Process().Signal(syscall.SIGCONT))

	eventually(t, func() error { return s.Ping(context.Background()) })
}

// TestFailover makes the database read-only in two ways, as a failover and a full disk do, and then writable.
func TestFailover(t *testing.T) {
	t.Parallel()

	for name, endConnections := range map[string]bool{"connections are ended": true, "connections stay": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			address := server.NewDatabase(t)
			s, err := store.Open(t.Context(), store.Options{URL: address, Timeout: waitTimeout, MaxConns: 8})
			must.Do(t, err)
			t.Cleanup(s.Close)

			admin, err := pgx.Connect(t.Context(), server.URL("postgres"))
			must.Do(t, err)
			t.Cleanup(func() { _ = admin.Close(context.Background()) })

			execute := func(statement string, args ...any) {
				t.Helper()

				_, err := admin.Exec(t.Context(), statement, args...)
				must.Do(t, err)
			}
			endAll := func() {
				execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", databaseOf(t, address))
			}
			write := func() error {
				return s.InTx(t.Context(), func(ctx context.Context, tx *store.Tx) error {
					_, err := tx.Insert(ctx, newCluster(rand.Text()[:20]))

					return err
				})
			}
			lease := func() error {
				_, err := s.PutLease(t.Context(), "sentinel", "a", time.Minute)

				return err
			}
			ping := func() error { return s.Ping(t.Context()) }

			must.Do(t, write())
			execute("alter database " + databaseOf(t, address) + " set default_transaction_read_only = on")
			endAll()

			for name, do := range map[string]func() error{"write": write, "lease": lease, "ping": ping} {
				if err := do(); !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("%s while the database is read-only: %v, want %v", name, err, store.ErrUnavailable)
				}
			}

			execute("alter database " + databaseOf(t, address) + " set default_transaction_read_only = off")

			if endConnections {
				endAll()
			}

			for name, do := range map[string]func() error{"ping": ping, "write": write, "lease": lease} {
				if err := do(); err != nil {
					t.Errorf("%s after the database can write again: %v", name, err)
				}
			}

			eventually(t, func() error {
				var listeners int

				err := admin.QueryRow(t.Context(), "select count(*) from pg_stat_activity where datname = $1 and query like 'listen %'",
					databaseOf(t, address)).Scan(&listeners)
				if err == nil && listeners != 1 {
					err = fmt.Errorf("%d connections listen for changes, want 1", listeners)
				}

				return err
			})
		})
	}
}

// TestConnectionsThatCannotWriteAreReplaced makes open connections read-only, as a server does when somebody
// configures it to allow only reads.
func TestConnectionsThatCannotWriteAreReplaced(t *testing.T) {
	s := newStore(t)

	for name, do := range map[string]func() error{
		"write": func() error {
			return s.InTx(t.Context(), func(ctx context.Context, tx *store.Tx) error {
				_, err := tx.Insert(ctx, newCluster("c"))

				return err
			})
		},
		"lease": func() error {
			_, err := s.PutLease(t.Context(), "sentinel", "a", time.Minute)

			return err
		},
		"ping":  func() error { return s.Ping(t.Context()) },
		"prune": func() error { _, err := s.PruneChanges(t.Context(), time.Hour); return err },
	} {
		t.Run(name, func(t *testing.T) {
			must.Do(t, store.MakeReadOnly(t.Context(), s))
			must.Do(t, do())
		})
	}
}

func withTimeout(t testing.TB, d time.Duration) context.Context {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)

	return ctx
}

// While replicas are updated one by one, replicas of the old version may also be restarted.
func TestAnOlderReplicaOpensANewerSchema(t *testing.T) {
	address := server.NewDatabase(t)
	insert(t, openStore(t, address), newCluster("c"))

	conn, err := pgx.Connect(t.Context(), address)
	must.Do(t, err)
	defer conn.Close(context.Background())

	_, err = conn.Exec(t.Context(), `alter table resources add column later text;
		insert into goose_db_version (version_id, is_applied) values (99999, true)`)
	must.Do(t, err)

	if found, _ := listNames(t, openStore(t, address), store.ListQuery{}); len(found) != 1 {
		t.Errorf("found %v", found)
	}
}

// After the restore of an older dump, the program cannot work until it has updated the schema.
func TestAnOlderSchemaIsNotReady(t *testing.T) {
	address := server.NewDatabase(t)
	s := openStore(t, address)

	conn, err := pgx.Connect(t.Context(), address)
	must.Do(t, err)
	defer conn.Close(context.Background())

	var newest int64

	must.Do(t, conn.QueryRow(t.Context(), "delete from goose_db_version where version_id = (select max(version_id) from goose_db_version) "+
		"returning version_id").Scan(&newest))

	if want := store.SchemaVersion; newest != want {
		t.Fatalf("the newest migration is %d, want %d", newest, want)
	}

	if err := s.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "restart the program") {
		t.Errorf("an older schema: %v", err)
	}
}

func TestErrorsContainNoPassword(t *testing.T) {
	t.Parallel()

	const password = "hunter2-in-the-url"

	for name, address := range map[string]string{
		"no server":               "postgres://u:" + password + "@127.0.0.1:1/db?sslmode=disable",
		"an invalid port":         "postgres://u:" + password + "@127.0.0.1:x/db",
		"a slash in the password": "postgres://u:a/" + password + "@127.0.0.1:1/db",
		"an invalid URL":          "://u:" + password + "@127.0.0.1",
		"unknown parameter":       "postgres://u:" + password + "@127.0.0.1:1/db?sslmode=perhaps",
		"key and value":           "host=127.0.0.1 port=1 user=u password=" + password + " sslmode=disable",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s, err := store.Open(withTimeout(t, waitTimeout), store.Options{URL: address})
			if err == nil {
				s.Close()
				t.Fatal("Open() succeeded")
			}

			if strings.Contains(err.Error(), password) {
				t.Errorf("error %v", err)
			}
		})
	}

	// The server rejects this password.
	wrong, err := url.Parse(server.URL("postgres"))
	must.Do(t, err)

	wrong.User = url.UserPassword(wrong.User.Username(), password)

	if _, err := store.Open(withTimeout(t, waitTimeout), store.Options{URL: wrong.String()}); err == nil ||
		strings.Contains(err.Error(), password) {
		t.Errorf("wrong password: error %v", err)
	}
}

func TestQueriesAreCountedByName(t *testing.T) {
	registry := prometheus.NewRegistry()

	calls, err := metrics.NewCallMetrics(registry, nil)
	must.Do(t, err)

	s, err := store.Open(t.Context(), store.Options{URL: server.NewDatabase(t), Timeout: waitTimeout, Calls: calls})
	must.Do(t, err)
	defer s.Close()

	insert(t, s, newCluster("c"))
	listNames(t, s, store.ListQuery{})

	for _, want := range []string{
		"InsertResource", "RecordChange", "CountResources", "ListResources", "begin", "commit",
	} {
		if scrape.SumOf(t, registry, "hyperfleet_external_call_duration_seconds_count", `operation="`+want+`",system="postgres"`) == 0 {
			t.Errorf("query %s is not counted", want)
		}
	}
}

func TestTransactionsAreAtomic(t *testing.T) {
	s := newStore(t)
	start := readLatestCursor(t, s)

	err := s.InTx(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		r, err := tx.Insert(ctx, newCluster("c"))
		if err != nil {
			return err
		}

		return errors.Join(recordChange(ctx, tx, r, store.OperationCreated), errRollBack)
	})
	if !errors.Is(err, errRollBack) {
		t.Fatal(err)
	}

	if found, _ := listNames(t, s, store.ListQuery{}); len(found) > 0 {
		t.Errorf("found %v after a rollback", found)
	}

	if feed := readChanges(t, s, store.ChangeQuery{After: start}); len(feed.Items) > 0 {
		t.Errorf("got changes %+v after a rollback", feed.Items)
	}

	func() {
		defer func() { _ = recover() }()

		_ = s.InTx(t.Context(), func(ctx context.Context, tx *store.Tx) error {
			_, _ = tx.Insert(ctx, newCluster("c"))

			panic("in a transaction")
		})
	}()

	insert(t, s, newCluster("c"))
}
