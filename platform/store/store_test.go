// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/store"
	"github.com/hyperfleet/hyperfleet/test/fleetapi"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/postgres"
)

// waitTimeout is the timeout for results that are certain, on a busy machine.
const waitTimeout = time.Minute

var server *postgres.Server

func TestMain(m *testing.M) {
	postgres.Main(m, func(s *postgres.Server) { server = s })
}

func openStore(t testing.TB, url string) *store.Store {
	t.Helper()

	s, err := store.Open(context.Background(), store.Options{URL: url, Timeout: waitTimeout})
	must.Do(t, err)

	t.Cleanup(s.Close)

	return s
}

func newStore(t testing.TB) *store.Store {
	t.Helper()

	return openStore(t, fleetapi.NewDatabase(t, server))
}

// newTime returns the time at which everything in these tests happens.
func newTime() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC) }

func newCluster(name string) store.Resource {
	return store.Resource{
		Kind: "Cluster", Name: name, Spec: json.RawMessage(`{"replicas": 3}`), Generation: 1,
		CreatedTime: newTime(), UpdatedTime: newTime(), CreatedBy: "ann",
	}
}

func newReconciled(status string, since time.Time) []openapi.ResourceCondition {
	return []openapi.ResourceCondition{{
		Type: "Reconciled", Status: status, ObservedGeneration: 1, CreatedTime: since, LastUpdatedTime: since, LastTransitionTime: since,
	}}
}

// insert adds resources and records their changes in one transaction.
func insert(t testing.TB, s *store.Store, resources ...store.Resource) []store.Resource {
	t.Helper()

	var stored []store.Resource

	err := s.InTx(context.Background(), func(ctx context.Context, tx *store.Tx) error {
		stored = nil

		for _, r := range resources {
			one, err := tx.Insert(ctx, r)
			if err != nil {
				return err
			}

			tx.RecordChange(one, store.OperationCreated)

			stored = append(stored, one)
		}

		return nil
	})
	must.Do(t, err)

	return stored
}

func getResource(t testing.TB, s *store.Store, id string) store.Resource {
	t.Helper()

	r, err := s.Get(context.Background(), id)
	must.Do(t, err)

	return r
}

func TestStoredResourcesRoundTrip(t *testing.T) {
	s := newStore(t)

	target := insert(t, s, newCluster("target"))[0]
	deleted := newTime().Add(time.Hour)
	given := store.Resource{
		Kind: "NodePool", Name: "pool", Spec: json.RawMessage(`{"big": 12345678901234567890, "deep": {"a": [1, null, "x"]}}`),
		Labels: map[string]string{"example.io/tier": "gold"}, Tenancy: map[string]string{"organization": "o1"}, Generation: 7,
		CreatedTime: newTime(), UpdatedTime: newTime().Add(time.Minute), DeletedTime: &deleted,
		CreatedBy: "ann", UpdatedBy: "bob", DeletedBy: "cid", OwnerID: target.ID, OwnerKind: "Cluster",
		References: map[string][]store.Ref{"uses": {{ID: target.ID}}},
		Conditions: append(newReconciled("False", newTime()), openapi.ResourceCondition{Type: "Available", Status: "True", Reason: "r", Message: "m"}),
	}

	stored := insert(t, s, given)[0]
	got := getResource(t, s, stored.ID)

	if version := uuid.MustParse(stored.ID).Version(); version != 7 {
		t.Errorf("the id is a UUID of version %d, want 7", version)
	}

	compact := cmp.Transformer("json", func(raw json.RawMessage) string {
		return strings.ReplaceAll(string(raw), " ", "")
	})
	if diff := cmp.Diff(stored, got, compact); diff != "" {
		t.Errorf("results of Insert and Get differ (-insert +get):\n%s", diff)
	}

	if got.CreatedTime != newTime().Truncate(time.Microsecond) || got.Conditions[0].Type != "Available" ||
		got.References["uses"][0] != (store.Ref{ID: target.ID, Kind: "Cluster"}) || !got.IsDeleting() {
		t.Errorf("read %+v", got)
	}
}

func TestConcurrentOpen(t *testing.T) {
	url := server.NewDatabase(t)

	var group sync.WaitGroup

	for range 8 {
		group.Go(func() {
			s, err := store.Open(context.Background(), store.Options{URL: url, MaxConns: 2, Timeout: waitTimeout})
			if err != nil {
				t.Error(err)

				return
			}

			s.Close()
		})
	}

	group.Wait()

	// Open runs once more with the existing schema.
	insert(t, openStore(t, url), newCluster("after"))
}

func TestErrorKinds(t *testing.T) {
	s := newStore(t)
	owner := insert(t, s, newCluster("owner"))[0]
	dying := insert(t, s, func() store.Resource { c := newCluster("dying"); c.DeletedTime = &c.CreatedTime; return c }())[0]
	absent := uuid.NewString()

	below := func(id string) store.Resource {
		return store.Resource{Kind: "NodePool", Name: "p", Spec: json.RawMessage(`{}`), Generation: 1, OwnerID: id, OwnerKind: "Cluster"}
	}
	child := insert(t, s, below(owner.ID))[0]

	inserts := func(r store.Resource) func(context.Context, *store.Tx) error {
		return func(ctx context.Context, tx *store.Tx) error {
			_, err := tx.Insert(ctx, r)

			return err
		}
	}
	with := func(change func(*store.Resource)) store.Resource {
		c := newCluster("owner")
		change(&c)

		return c
	}
	other := insert(t, s, newCluster("other"))[0]

	cases := map[string]struct {
		do   func(ctx context.Context, tx *store.Tx) error
		want error
	}{
		"an existing name":                  {inserts(newCluster("owner")), store.ErrExists},
		"a name of a deleting resource":     {inserts(newCluster("dying")), store.ErrExists},
		"the same name of another kind":     {inserts(with(func(c *store.Resource) { c.Kind = "Other" })), nil},
		"the same name below another owner": {inserts(below(other.ID)), nil},
		"the same name of another tenant": {
			inserts(with(func(c *store.Resource) { c.Tenancy = map[string]string{"organization": "o2"} })), nil,
		},
		"a tenancy that is too large": {
			inserts(with(func(c *store.Resource) { c.Tenancy = map[string]string{"organization": strings.Repeat("o", 5000)} })), store.ErrUnstorable,
		},
		"a NUL in a spec": {
			inserts(with(func(c *store.Resource) { c.Name, c.Spec = "nul", json.RawMessage(`{"a": "\u0000"}`) })), store.ErrUnstorable,
		},
		"a NUL in a name":  {inserts(newCluster("a\x00b")), store.ErrUnstorable},
		"a missing owner":  {inserts(below(absent)), store.ErrOwnerMissing},
		"a deleting owner": {inserts(below(dying.ID)), store.ErrOwnerDeleting},
		"delete a resource with children": {func(ctx context.Context, tx *store.Tx) error {
			return tx.Remove(ctx, owner.ID)
		}, store.ErrHasChildren},
		"delete a resource and its children": {func(ctx context.Context, tx *store.Tx) error {
			return errors.Join(tx.Remove(ctx, owner.ID, child.ID), errRollBack)
		}, errRollBack},
		"delete a missing resource": {func(ctx context.Context, tx *store.Tx) error {
			_, err := tx.GetForUpdate(ctx, absent)

			return err
		}, store.ErrNotFound},
		"an invalid id": {func(ctx context.Context, tx *store.Tx) error {
			_, err := tx.Get(ctx, "{"+owner.ID+"}")

			return err
		}, store.ErrNotFound},
		"a report on a missing resource": {func(_ context.Context, tx *store.Tx) error {
			tx.PutStatus(absent, openapi.AdapterStatus{Adapter: "a"})

			return nil
		}, store.ErrNotFound},
		"an update of a missing resource": {func(ctx context.Context, tx *store.Tx) error {
			_, err := tx.Update(ctx, with(func(c *store.Resource) { c.ID = absent }))

			return err
		}, store.ErrNotFound},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if err := s.InTx(t.Context(), tc.do); !errors.Is(err, tc.want) {
				t.Errorf("error %v, want %v", err, tc.want)
			}
		})
	}
}

var errRollBack = errors.New("roll back")

// If no number of connections is configured, it depends on the number of processors, because
// connections that are opened during a load peak make the peak worse.
func TestConnectionsByDefault(t *testing.T) {
	url := server.NewDatabase(t)

	for configured, want := range map[int32]int32{0: max(4, int32(2*runtime.GOMAXPROCS(0)+1)), 3: 3} {
		s, err := store.Open(t.Context(), store.Options{URL: url, MaxConns: configured})
		must.Do(t, err)

		if got := store.MaxConns(s); got != want {
			t.Errorf("configured %d connections: limit %d, want %d", configured, got, want)
		}

		s.Close()
	}
}
