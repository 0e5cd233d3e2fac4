// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/conditions"
	"github.com/hyperfleet/hyperfleet/platform/store"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/pgproc"
	"github.com/hyperfleet/hyperfleet/test/postgres"
)

const pointInTime = "point-in-time recovery"

// restoreKind is a way in which a database goes back in time.
type restoreKind struct {
	name string
	// save saves the state of the database at the URL, and returns a function that goes back to it and returns
	// the URL of the database.
	save func(t *testing.T, own *postgres.Server, address string) (restore func() string)
}

func restoreKinds() []restoreKind {
	return []restoreKind{
		{"dump into the same database", func(t *testing.T, _ *postgres.Server, address string) func() string {
			t.Helper()

			file := dump(t, address)

			return func() string {
				runTool(t, address, "pg_restore", "--clean", "--if-exists", "--single-transaction", "-d", databaseOf(t, address), file)

				return address
			}
		}},
		{"dump into another database", func(t *testing.T, own *postgres.Server, address string) func() string {
			t.Helper()

			file := dump(t, address)

			return func() string {
				other := own.NewDatabase(t)
				runTool(t, other, "pg_restore", "--single-transaction", "-d", databaseOf(t, other), file)

				return other
			}
		}},
		{"snapshot of the disk", func(t *testing.T, own *postgres.Server, address string) func() string {
			t.Helper()

			snapshot := filepath.Join(t.TempDir(), "snapshot")
			own.ChangeFiles(t, func(dir string) { runCommand(t, "cp", "-a", dir, snapshot) })

			return func() string {
				own.ChangeFiles(t, func(dir string) { replaceFolder(t, dir, snapshot) })

				return address
			}
		}},
		{pointInTime, savePointInTime},
	}
}

// savePointInTime restores the files from before the changes, and replays the write-ahead log up to a point.
func savePointInTime(t *testing.T, own *postgres.Server, address string) func() string {
	t.Helper()

	recoverTo := own.SaveFiles(t)

	insert(t, openStore(t, address), newCluster("only-in-the-log"))

	point := queryText(t, address, "select pg_current_wal_lsn()::text")

	return func() string {
		recoverTo(point)

		eventually(t, func() error {
			if queryText(t, address, "select pg_is_in_recovery()::text") == "true" {
				return errors.New("the server still replays its log")
			}

			return nil
		})

		return address
	}
}

func databaseOf(t *testing.T, address string) string {
	t.Helper()

	parsed, err := url.Parse(address)
	must.Do(t, err)

	return parsed.Path[1:]
}

func queryText(t *testing.T, address, query string) (text string) {
	t.Helper()

	conn, err := pgx.Connect(t.Context(), address)
	must.Do(t, err)
	defer conn.Close(context.Background())

	must.Do(t, conn.QueryRow(t.Context(), query).Scan(&text))

	return text
}

func execute(t *testing.T, address, statement string) {
	t.Helper()

	conn, err := pgx.Connect(t.Context(), address)
	must.Do(t, err)
	defer conn.Close(context.Background())

	_, err = conn.Exec(t.Context(), statement)
	must.Do(t, err)
}

func dump(t *testing.T, address string) string {
	t.Helper()

	file := filepath.Join(t.TempDir(), "dump")
	runTool(t, address, "pg_dump", "-Fc", "-f", file, databaseOf(t, address))

	return file
}

// runTool runs one of PostgreSQL's programs with the server and the user of a URL.
func runTool(t *testing.T, address, name string, args ...string) {
	t.Helper()

	parsed, err := url.Parse(address)
	must.Do(t, err)

	dir, err := pgproc.FindBinaries()
	must.Do(t, err)

	password, _ := parsed.User.Password()
	command := exec.CommandContext(t.Context(), filepath.Join(dir, name), args...)
	command.Env = append(os.Environ(), "PGHOST="+parsed.Hostname(), "PGPORT="+parsed.Port(), "PGUSER="+parsed.User.Username(),
		"PGPASSWORD="+password)

	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
}

func runCommand(t *testing.T, name string, args ...string) {
	t.Helper()

	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

func replaceFolder(t *testing.T, dir, from string) {
	t.Helper()
	must.Do(t, os.RemoveAll(dir))
	runCommand(t, "cp", "-a", from, dir)
}

// changeThreeTimes changes a resource three times.
func changeThreeTimes(t *testing.T, s *store.Store, id string) {
	t.Helper()

	for range 3 {
		must.Do(t, s.InTx(t.Context(), func(ctx context.Context, tx *store.Tx) error { return updateResource(ctx, tx, id) }))
	}
}

// TestCursorsFromBeforeARestore checks that a cursor from before a restore is refused at once, and also when
// the numbers of the changes have caught up with it.
func TestCursorsFromBeforeARestore(t *testing.T) { //nolint:tparallel // its subtests share a server, one after the other
	t.Parallel()

	own := postgres.Start(t)

	for _, kind := range restoreKinds() {
		t.Run(kind.name, func(t *testing.T) {
			address := own.NewDatabase(t)
			id := insert(t, openStore(t, address), newCluster("c"))[0].ID
			restore := kind.save(t, own, address)
			s := openStore(t, address)
			kept := readLatestCursor(t, s)

			changeThreeTimes(t, s, id)

			lost := readChanges(t, s, store.ChangeQuery{After: kept}).Next

			// A program that uses the same database runs on.
			if restored := restore(); restored != address {
				s = openStore(t, restored)
			}

			requireGone := func(when string) {
				t.Helper()

				if feed, err := s.Changes(t.Context(), store.ChangeQuery{After: lost}); !errors.Is(err, store.ErrCursorGone) {
					t.Errorf("a cursor from before the restore, %s: %+v, %v", when, feed, err)
				}
			}

			requireGone("at once")

			// A server that has lost power does not use some numbers, therefore the loop.
			for range 15 {
				changeThreeTimes(t, s, id)
				requireGone("after changes")
			}

			if feed := readChanges(t, s, store.ChangeQuery{After: kept}); len(feed.Items) != 45 {
				t.Errorf("%d changes after a cursor that the restore kept, want 45", len(feed.Items))
			}
		})
	}
}

// requireDropped checks that a resource is not reconciled by any read, and that its reports are gone.
func requireDropped(t *testing.T, s *store.Store, id string) {
	t.Helper()

	if found, total := listNames(t, s, store.ListQuery{Search: "status.conditions.Reconciled='True'"}); total > 0 {
		t.Errorf("the reconciled resources are %v, want none", found)
	}

	want := []openapi.ResourceCondition{
		{Type: "LastKnownReconciled", Status: "True"}, {Type: "Reconciled", Status: "False", Reason: conditions.ReasonDatabaseRestored},
	}
	got := getResource(t, s, id).Conditions

	for i := range got {
		got[i] = openapi.ResourceCondition{Type: got[i].Type, Status: got[i].Status, Reason: got[i].Reason, ObservedGeneration: got[i].ObservedGeneration}
	}

	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}

	if reports, err := s.Statuses(t.Context(), id); len(reports) > 0 || err != nil {
		t.Errorf("reports %v, %v, want none", reports, err)
	}
}

// report stores a report and the conditions that it results in.
func report(t *testing.T, s *store.Store, id string) {
	t.Helper()

	list := newReconciled("True", newTime())
	for _, of := range []string{"LastKnownReconciled", "DnsSuccessful"} {
		list = append(list, openapi.ResourceCondition{Type: of, Status: "True"})
	}

	must.Do(t, s.InTx(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		if _, err := tx.GetForUpdate(ctx, id); err != nil {
			return err
		}

		tx.PutStatus(id, openapi.AdapterStatus{Adapter: "dns", ObservedGeneration: 1, ObservedTime: newTime()})

		return tx.SetConditions(id, list)
	}))
}

func countReports(t *testing.T, s *store.Store, id string) int {
	t.Helper()

	found, err := s.Statuses(t.Context(), id)
	must.Do(t, err)

	return len(found)
}

// TestReportsFromBeforeARestore checks that no read returns a report from before a restore, whether the API runs
// meanwhile or is started after it. Reports from after the restore stay.
func TestReportsFromBeforeARestore(t *testing.T) { //nolint:tparallel // its subtests share a server, one after the other
	t.Parallel()

	own := postgres.Start(t)

	for _, kind := range restoreKinds() {
		for _, runs := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, the API runs: %v", kind.name, runs), func(t *testing.T) {
				own := own
				if kind.name == pointInTime && !runs {
					own = postgres.Start(t) // a server can be recovered once
				}

				address := own.NewDatabase(t)
				s := openStore(t, address)
				id, later := insert(t, s, newCluster("c"))[0].ID, insert(t, s, newCluster("never-reported"))[0].ID
				report(t, s, id)

				restore := kind.save(t, own, address)
				changeThreeTimes(t, s, id)
				report(t, s, id)

				if !runs {
					s.Close()
				}

				restored := restore()
				if !runs || restored != address {
					s = openStore(t, restored)
				}

				requireDropped(t, s, id)

				if got := getResource(t, s, later); len(got.Conditions) > 0 {
					t.Errorf("the conditions of a resource without reports are %v", got.Conditions)
				}

				report(t, s, id)

				if countReports(t, openStore(t, restored), id) != 1 {
					t.Error("a report from after the restore is gone when another replica has started")
				}
			})
		}
	}
}

// TestRestartOfTheServer checks that reports stay if a replica knows that the server has lost nothing, and count no more
// if none knows.
func TestRestartOfTheServer(t *testing.T) {
	t.Parallel()

	own := postgres.Start(t)
	address := own.NewDatabase(t)
	s, other := openStore(t, address), openStore(t, address)
	id := insert(t, s, newCluster("c"))[0].ID
	report(t, s, id)

	for _, replica := range []*store.Store{s, other} {
		readLatestCursor(t, replica)
	}

	own.KillAndRestart(t)

	for _, replica := range []*store.Store{other, s} {
		if countReports(t, replica, id) != 1 {
			t.Error("a report is gone although nothing was lost")
		}
	}

	if countReports(t, openStore(t, address), id) != 1 {
		t.Error("a report is gone although another replica knows that nothing was lost")
	}

	// Maintenance of the table does not look like a restore.
	for _, statement := range []string{"vacuum (freeze) incarnation", "vacuum (full, freeze) incarnation", "analyze incarnation"} {
		execute(t, address, statement)
	}

	if countReports(t, openStore(t, address), id) != 1 || getResource(t, other, id).Conditions[0].Status != "True" {
		t.Error("a report is gone after a vacuum")
	}

	s.Close()
	other.Close()
	own.KillAndRestart(t)
	requireDropped(t, openStore(t, address), id)
}
