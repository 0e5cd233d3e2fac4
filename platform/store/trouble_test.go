// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"errors"
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
	"github.com/hyperfleet/hyperfleet/test/postgres"
	"github.com/hyperfleet/hyperfleet/test/scrape"
)

func putLease(t testing.TB, s *store.Store, holder string, ttl time.Duration) openapi.Lease {
	t.Helper()

	lease, err := s.PutLease(context.Background(), "sentinel", holder, ttl)
	must(t, err)

	return lease
}

func TestALeaseHasOneHolder(t *testing.T) {
	s := fresh(t)

	if got := putLease(t, s, "a", time.Hour); got.Holder != "a" || got.ExpiresInSeconds <= 59*60 || got.ExpiresInSeconds > 3600 {
		t.Errorf("a free lease: %+v, want it for an hour", got)
	}

	if got := putLease(t, s, "b", time.Hour); got.Holder != "a" {
		t.Errorf("a lease that a has: %+v", got)
	}

	if got := putLease(t, s, "a", 2*time.Hour); got.Holder != "a" || got.ExpiresInSeconds <= 3600 {
		t.Errorf("renewed: %+v, want it for two hours", got)
	}

	if got := putLease(t, s, "b", 0); got.Holder != "a" {
		t.Errorf("given back by one that has not got it: %+v", got)
	}

	if got := putLease(t, s, "a", 0); got.Holder != "" || got.ExpiresInSeconds != 0 {
		t.Errorf("given back: %+v, want no holder", got)
	}

	if got := putLease(t, s, "b", time.Hour); got.Holder != "b" {
		t.Errorf("after it was given back: %+v", got)
	}
}

func TestAnExpiredLeaseIsTakenOver(t *testing.T) {
	s := fresh(t)
	putLease(t, s, "dead", 50*time.Millisecond)

	for deadline := time.Now().Add(patience); ; {
		got := putLease(t, s, "next", time.Hour)
		if got.Holder == "next" {
			break
		}

		if got.ExpiresInSeconds > 0.05 || time.Now().After(deadline) {
			t.Fatalf("%+v, want it taken over", got)
		}

		time.Sleep(5 * time.Millisecond)
	}

	// The previous holder, whose lease has expired, gets the new holder in the response.
	if got := putLease(t, s, "dead", time.Hour); got.Holder != "next" {
		t.Errorf("%+v, want next to have it", got)
	}
}

func TestOfManyOneGetsTheLease(t *testing.T) {
	s := fresh(t)

	var (
		group sync.WaitGroup
		mu    sync.Mutex
		said  = map[string]int{}
	)

	for i := range 20 {
		group.Go(func() {
			lease := putLease(t, s, string(rune('a'+i)), time.Hour)

			mu.Lock()
			defer mu.Unlock()

			said[lease.Holder]++
		})
	}

	group.Wait()

	if len(said) != 1 {
		t.Errorf("holders by what each was told: %v, want one", said)
	}
}

// TestADatabaseInTrouble stops its server, so it has its own.
func TestADatabaseInTrouble(t *testing.T) { //nolint:tparallel // its subtests share a server, one after the other
	t.Parallel()

	own := postgres.Start(t)

	t.Run("a restart is survived", func(t *testing.T) { testRestart(t, own) })
	t.Run("who is silent is unavailable", func(t *testing.T) { testSilent(t, own) })
}

func testRestart(t *testing.T, own *postgres.Server) {
	t.Helper()

	s := open(t, own.NewDatabase(t))
	insert(t, s, cluster("before"))
	start := now(t, s)
	heard := make(chan store.Feed, 1)

	own.KillAndRestart(t)

	// The old connections are discarded, and no caller gets an error.
	if found, _ := names(t, s, store.ListQuery{}); len(found) != 1 {
		t.Errorf("found %v after the restart", found)
	}

	go func() {
		feed, err := s.Changes(context.Background(), store.ChangeQuery{After: start, Wait: patience})
		if err != nil {
			t.Error(err)
		}

		heard <- feed
	}()

	insert(t, s, cluster("after"))

	if feed := <-heard; len(feed.Items) != 1 {
		t.Errorf("heard of %d changes after the restart, want 1", len(feed.Items))
	}
}

func eventually(t testing.TB, do func() error) {
	t.Helper()

	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		err := do()
		if err == nil {
			return
		}

		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func testSilent(t *testing.T, own *postgres.Server) {
	t.Helper()

	address := own.NewDatabase(t)

	s, err := store.Open(t.Context(), store.Options{URL: address, Timeout: 3 * time.Second})
	must(t, err)
	defer s.Close()

	// PostgreSQL's child processes have their own process groups, so the test cannot stop them
	// together with the server. Instead, a transaction that holds the row lock does not respond.
	holding, release := make(chan struct{}), make(chan struct{})
	other := open(t, address)
	c := insert(t, other, cluster("c"))[0]

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

	must(t, own.Process().Signal(syscall.SIGSTOP))

	if _, err := store.Open(withTimeout(t, time.Second), store.Options{URL: address}); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a server that takes no connections: error %v, want %v", err, store.ErrUnavailable)
	}

	must(t, own.Process().Signal(syscall.SIGCONT))

	eventually(t, func() error { return s.Ping(context.Background()) })
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
	insert(t, open(t, address), cluster("c"))

	conn, err := pgx.Connect(t.Context(), address)
	must(t, err)
	defer conn.Close(context.Background())

	_, err = conn.Exec(t.Context(), `alter table resources add column later text;
		insert into goose_db_version (version_id, is_applied) values (99999, true)`)
	must(t, err)

	if found, _ := names(t, open(t, address), store.ListQuery{}); len(found) != 1 {
		t.Errorf("found %v", found)
	}
}

func TestThePasswordIsInNoError(t *testing.T) {
	t.Parallel()

	const password = "hunter2-in-the-url"

	for name, address := range map[string]string{
		"nobody listens":     "postgres://u:" + password + "@127.0.0.1:1/db?sslmode=disable",
		"no number of port":  "postgres://u:" + password + "@127.0.0.1:x/db",
		"what is in it is /": "postgres://u:a/" + password + "@127.0.0.1:1/db",
		"no URL":             "://u:" + password + "@127.0.0.1",
		"unknown parameter":  "postgres://u:" + password + "@127.0.0.1:1/db?sslmode=perhaps",
		"key and value":      "host=127.0.0.1 port=1 user=u password=" + password + " sslmode=disable",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s, err := store.Open(withTimeout(t, patience), store.Options{URL: address})
			if err == nil {
				s.Close()
				t.Fatal("it opened")
			}

			if strings.Contains(err.Error(), password) {
				t.Errorf("error %v", err)
			}
		})
	}

	// The server rejects this password.
	wrong, err := url.Parse(server.URL("postgres"))
	must(t, err)

	wrong.User = url.UserPassword(wrong.User.Username(), password)

	if _, err := store.Open(withTimeout(t, patience), store.Options{URL: wrong.String()}); err == nil ||
		strings.Contains(err.Error(), password) {
		t.Errorf("a wrong password: error %v", err)
	}
}

func TestQueriesAreCountedByName(t *testing.T) {
	registry := prometheus.NewRegistry()

	calls, err := metrics.NewCallMetrics(registry, nil)
	must(t, err)

	s, err := store.Open(t.Context(), store.Options{URL: server.NewDatabase(t), Timeout: patience, Calls: calls})
	must(t, err)
	defer s.Close()

	insert(t, s, cluster("c"))
	names(t, s, store.ListQuery{})

	for _, want := range []string{
		"InsertResource", "RecordChange", "CountResources", "ListResources", "begin", "commit",
	} {
		if scrape.SumOf(t, registry, "hyperfleet_external_call_duration_seconds_count", `operation="`+want+`",system="postgres"`) == 0 {
			t.Errorf("no query %s is counted", want)
		}
	}
}

func TestEffectsOfATransactionAreAllOrNone(t *testing.T) {
	s := fresh(t)
	start := now(t, s)

	err := s.InTx(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		r, err := tx.Insert(ctx, cluster("c"))
		if err != nil {
			return err
		}

		return errors.Join(recorded(ctx, tx, r, store.OperationCreated), errRollBack)
	})
	if !errors.Is(err, errRollBack) {
		t.Fatal(err)
	}

	if found, _ := names(t, s, store.ListQuery{}); len(found) > 0 {
		t.Errorf("found %v after a rollback", found)
	}

	if feed := changes(t, s, store.ChangeQuery{After: start}); len(feed.Items) > 0 {
		t.Errorf("heard of %+v after a rollback", feed.Items)
	}

	func() {
		defer func() { _ = recover() }()

		_ = s.InTx(t.Context(), func(ctx context.Context, tx *store.Tx) error {
			_, _ = tx.Insert(ctx, cluster("c"))

			panic("in a transaction")
		})
	}()

	insert(t, s, cluster("c"))
}
