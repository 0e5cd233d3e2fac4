// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/store"
	"github.com/hyperfleet/hyperfleet/test/fleetapi"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// runTx runs a transaction that has to succeed.
func runTx(t testing.TB, s *store.Store, run func(ctx context.Context, tx *store.Tx) error) {
	t.Helper()

	must.Do(t, s.InTx(context.Background(), run))
}

func TestDeadlockedWritersAreRetried(t *testing.T) {
	s := newStore(t)
	stored := insert(t, s, newCluster("a"), newCluster("b"))

	var (
		group sync.WaitGroup
		tries atomic.Int32
	)

	// Each transaction holds one lock before either requests the other.
	var both sync.WaitGroup

	both.Add(2)

	for i := range 2 {
		group.Go(func() {
			first := true
			err := s.InTx(context.Background(), func(ctx context.Context, tx *store.Tx) error {
				tries.Add(1)

				if _, err := tx.GetForUpdate(ctx, stored[i].ID); err != nil {
					return err
				}

				if first {
					first = false

					both.Done()
					both.Wait()
				}

				r, err := tx.GetForUpdate(ctx, stored[1-i].ID)
				if err != nil {
					return err
				}

				r.Generation++
				_, err = tx.Update(ctx, r)

				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}

	group.Wait()

	if tries.Load() < 3 {
		t.Errorf("%d attempts: the transactions did not deadlock, so the test proves nothing", tries.Load())
	}

	for _, r := range stored {
		if got := getResource(t, s, r.ID).Generation; got != 2 {
			t.Errorf("%s has generation %d, want 2", r.Name, got)
		}
	}
}

// A resource that is being deleted and has an owner is read but not locked, because its removal may
// remove the owner, which has to be locked first. Another transaction can still lock it.
func TestTryGetForUpdateSkipsOwnedDeletingResources(t *testing.T) {
	s := newStore(t)
	deleted := newTime()

	gone := newCluster("gone")
	gone.DeletedTime = &deleted
	owner := insert(t, s, newCluster("owner"))[0]
	pool := func(name string, at *time.Time) store.Resource {
		return store.Resource{
			Kind: "NodePool", Name: name, Spec: []byte(`{}`), Generation: 1, OwnerID: owner.ID, OwnerKind: "Cluster", DeletedTime: at,
		}
	}

	for _, tc := range []struct {
		name     string
		resource store.Resource
		locks    bool
	}{
		{"no owner", newCluster("alone"), true},
		{"no owner, deleting", gone, true},
		{"owned", pool("stays", nil), true},
		{"owned, deleting", pool("goes", &deleted), false},
	} {
		r := insert(t, s, tc.resource)[0]

		runTx(t, s, func(ctx context.Context, tx *store.Tx) error {
			read, _, isLocked, err := tx.TryGetForUpdate(ctx, r.ID)
			if err != nil {
				return err
			}

			if read.Name != r.Name || isLocked != tc.locks {
				t.Errorf("%s: %s, locked %t", tc.name, read.Name, isLocked)
			}

			other := s.InTx(withTimeout(t, time.Second), func(ctx context.Context, tx *store.Tx) error {
				_, err := tx.GetForUpdate(ctx, r.ID)

				return err
			})
			if free := other == nil; free == tc.locks {
				t.Errorf("%s: locked by another transaction: %v", tc.name, other)
			}

			return nil
		})
	}

	runTx(t, s, func(ctx context.Context, tx *store.Tx) error {
		for _, id := range []string{"none", "01a20013-5bd4-7c5a-8a05-7f0f074016c2"} {
			if _, _, _, err := tx.TryGetForUpdate(ctx, id); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("%s: %v", id, err)
			}
		}

		return nil
	})
}

// In any order of the transactions, an active child never has an owner that is being deleted, and
// no reference points to such a target.
func TestNothingIsAddedToDeletingResources(t *testing.T) {
	s := newStore(t)

	for round := range 20 {
		owner := insert(t, s, newCluster(fmt.Sprint("owner", round)))[0]
		source := insert(t, s, newCluster(fmt.Sprint("source", round)))[0]

		var (
			group              sync.WaitGroup
			children, inbound  int
			inserted, referred error
		)

		group.Go(func() {
			err := s.InTx(context.Background(), func(ctx context.Context, tx *store.Tx) error {
				r, err := tx.GetForUpdate(ctx, owner.ID)
				if err != nil {
					return err
				}

				below, err := tx.Children(ctx, owner.ID)
				if err != nil {
					return err
				}

				refs, err := tx.InboundReferences(ctx, owner.ID)
				if err != nil {
					return err
				}

				children, inbound = len(below), len(refs)
				deleted := newTime()
				r.DeletedTime = &deleted
				_, err = tx.Update(ctx, r)

				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
		group.Go(func() {
			inserted = s.InTx(context.Background(), func(ctx context.Context, tx *store.Tx) error {
				_, err := tx.Insert(ctx, store.Resource{
					Kind: "NodePool", Name: "p", Spec: []byte(`{}`), Generation: 1, OwnerID: owner.ID, OwnerKind: "Cluster",
				})

				return err
			})
		})
		group.Go(func() {
			referred = s.InTx(context.Background(), func(ctx context.Context, tx *store.Tx) error {
				_, err := tx.SetReferences(ctx, source.ID, map[string][]store.Ref{"uses": {{ID: owner.ID}}})

				return err
			})
		})
		group.Wait()

		if (inserted == nil) != (children == 1) || (inserted != nil && !errors.Is(inserted, store.ErrOwnerDeleting)) {
			t.Errorf("round %d: the deletion saw %d children, and the insert returned %v", round, children, inserted)
		}

		var refused *store.TargetError
		if (referred == nil) != (inbound == 1) || (referred != nil && !errors.As(referred, &refused)) {
			t.Errorf("round %d: the deletion saw %d references, and the update of the referrer returned %v", round, inbound, referred)
		}
	}
}

func TestReferences(t *testing.T) {
	s := newStore(t)
	stored := insert(t, s, newCluster("one"), newCluster("two"), newCluster("three"))
	one, two, three := stored[0], stored[1], stored[2]

	set := func(refs map[string][]store.Ref) error {
		return s.InTx(context.Background(), func(ctx context.Context, tx *store.Tx) error {
			_, err := tx.SetReferences(ctx, one.ID, refs)

			return err
		})
	}

	want := map[string][]store.Ref{
		"uses": {{ID: three.ID, Kind: "Cluster"}, {ID: two.ID, Kind: "Cluster"}}, "likes": {{ID: two.ID, Kind: "Cluster"}},
	}
	must.Do(t, set(map[string][]store.Ref{"uses": {{ID: three.ID}, {ID: two.ID}}, "likes": {{ID: two.ID, Kind: "Cluster"}}}))

	if diff := cmp.Diff(want, getResource(t, s, one.ID).References); diff != "" {
		t.Errorf("references (-want +got):\n%s", diff)
	}

	for name, tc := range map[string]struct {
		ref     store.Ref
		problem string
	}{
		"a missing target": {store.Ref{ID: uuid.NewString()}, store.TargetMissing},
		"no id":            {store.Ref{ID: "x"}, store.TargetMissing},
		"another kind":     {store.Ref{ID: two.ID, Kind: "NodePool"}, store.TargetWrongKind},
		"twice":            {store.Ref{ID: three.ID}, store.TargetDuplicate},
	} {
		t.Run(name, func(t *testing.T) {
			var wrong *store.TargetError
			if err := set(map[string][]store.Ref{"uses": {{ID: three.ID}, tc.ref}}); !errors.As(err, &wrong) || wrong.Problem != tc.problem {
				t.Errorf("error %v, want %q", err, tc.problem)
			}
		})
	}

	if diff := cmp.Diff(want, getResource(t, s, one.ID).References); diff != "" {
		t.Errorf("references after rejected updates (-want +got):\n%s", diff)
	}

	// The target may be removed. The reference stays.
	runTx(t, s, func(ctx context.Context, tx *store.Tx) error {
		inbound, err := tx.InboundReferences(ctx, two.ID)
		if diff := cmp.Diff([]store.InboundRef{
			{SourceID: one.ID, SourceKind: "Cluster", Type: "likes"}, {SourceID: one.ID, SourceKind: "Cluster", Type: "uses"},
		}, inbound); err != nil || diff != "" {
			t.Errorf("error %v, inbound references (-want +got):\n%s", err, diff)
		}

		return errors.Join(err, tx.Remove(ctx, two.ID))
	})

	if diff := cmp.Diff(want, getResource(t, s, one.ID).References); diff != "" {
		t.Errorf("references to a removed resource (-want +got):\n%s", diff)
	}
}

func TestStatuses(t *testing.T) {
	s := newStore(t)
	id := insert(t, s, newCluster("c"))[0].ID
	at := newTime().Truncate(time.Microsecond)
	data := openapi.Object{"nested": map[string]any{"n": json.Number("1.000000000000000000001"), "big": int64(9007199254740993)}}

	first := openapi.AdapterStatus{
		Adapter: "b", ObservedGeneration: 1, ObservedTime: at, CreatedTime: at, LastReportTime: at, Data: &data,
		Conditions:           []openapi.AdapterCondition{{Type: "Available", Status: "True", LastTransitionTime: &at}},
		AdapterConfigVersion: "1.2", AdapterFrameworkVersion: "0.9",
	}
	second := first
	second.ObservedGeneration, second.Data, second.CreatedTime = 2, nil, at.Add(time.Hour)
	second.LastReportTime = at.Add(time.Hour)
	other := openapi.AdapterStatus{Adapter: "a", Conditions: []openapi.AdapterCondition{}}

	runTx(t, s, func(_ context.Context, tx *store.Tx) error {
		for _, status := range []openapi.AdapterStatus{first, second, other} {
			tx.PutStatus(id, status)
		}

		return nil
	})

	got, err := s.Statuses(t.Context(), id)
	must.Do(t, err)

	second.CreatedTime = at
	if diff := cmp.Diff([]openapi.AdapterStatus{other, second}, got); diff != "" {
		t.Errorf("statuses (-want +got):\n%s", diff)
	}

	if got, err := s.Statuses(t.Context(), uuid.NewString()); err != nil || len(got) > 0 {
		t.Errorf("statuses of a missing resource: %v, error %v", got, err)
	}
}

func TestConditionsAreReplaced(t *testing.T) {
	s := newStore(t)
	c := newCluster("c")
	c.Conditions = newReconciled("False", newTime())
	id := insert(t, s, c)[0].ID

	set := func(conditions []openapi.ResourceCondition) error {
		return s.InTx(context.Background(), func(_ context.Context, tx *store.Tx) error {
			return tx.SetConditions(id, conditions)
		})
	}

	must.Do(t, set([]openapi.ResourceCondition{{Type: "Z", Status: "True"}, {Type: "A", Status: "False"}}))

	got := getResource(t, s, id).Conditions
	if len(got) != 2 || got[0].Type != "A" || got[1].Type != "Z" {
		t.Errorf("conditions %+v, want only A and Z", got)
	}

	if err := set([]openapi.ResourceCondition{{Type: "A"}, {Type: "A"}}); err == nil {
		t.Error("a duplicate type was accepted")
	}
}

// A repeated report only changes the time of conditions, which all reads return, and no index is
// written for it.
func TestRepeatedReport(t *testing.T) {
	url := fleetapi.NewDatabase(t, server)
	s := openStore(t, url)
	c := newCluster("c")
	c.Conditions = newReconciled("True", newTime())
	id := insert(t, s, c)[0].ID

	report := func(write func(*store.Tx, []openapi.ResourceCondition) error, at time.Time) {
		t.Helper()

		want := getResource(t, s, id).Conditions
		want[0].LastUpdatedTime = at

		runTx(t, s, func(_ context.Context, tx *store.Tx) error { return write(tx, want) })

		if got := getResource(t, s, id).Conditions; !cmp.Equal(got, want) {
			t.Errorf("conditions (-want +got):\n%s", cmp.Diff(want, got))
		}

		for search, want := range map[string]int{
			"status.conditions.Reconciled.last_updated_time = '" + at.Format(time.RFC3339) + "'": 1,
			"status.conditions.Reconciled.last_updated_time > '" + at.Format(time.RFC3339) + "'": 0,
			"status.conditions.Other.last_updated_time is null":                                  1,
			"status.conditions.Reconciled = 'True'":                                              1,
		} {
			if _, total := listNames(t, s, store.ListQuery{Search: search}); total != want {
				t.Errorf("%s: %d found, want %d", search, total, want)
			}
		}
	}

	conn, err := pgx.Connect(t.Context(), url)
	must.Do(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))

	// The stored conditions show whether the indexed column was written.
	indexed := func() (text string) {
		must.Do(t, conn.QueryRow(t.Context(), "select conditions::text from resources where id = $1", id).Scan(&text))

		return text
	}

	hour := newTime().Truncate(time.Hour)
	before := indexed()

	report(func(tx *store.Tx, reported []openapi.ResourceCondition) error {
		tx.SetReported(id, reported)

		return nil
	}, hour.Add(time.Hour))

	if after := indexed(); after != before {
		t.Errorf("the indexed column was written:\n%s\n%s", before, after)
	}

	report(func(tx *store.Tx, changed []openapi.ResourceCondition) error {
		return tx.SetConditions(id, changed)
	}, hour.Add(2*time.Hour))
}

func TestPending(t *testing.T) {
	s := newStore(t)
	at := newTime()

	add := func(name, status string, since time.Duration, deleted *time.Duration) {
		c := newCluster(name)
		c.Conditions = newReconciled(status, at.Add(-since))

		if deleted != nil {
			when := at.Add(-*deleted)
			c.DeletedTime = &when
		}

		insert(t, s, c)
	}
	minute, hours := time.Minute, 2*time.Hour

	add("fine", "True", 5*time.Hour, nil)
	add("young", "False", time.Minute, nil)
	add("stuck", "False", time.Hour, nil)
	add("worse", "False", 3*time.Hour, nil)
	add("just deleted", "False", 9*time.Hour, &minute)
	add("deleted long ago", "False", 9*time.Hour, &hours)

	plain := newCluster("without conditions")
	plain.Kind = "Channel"
	insert(t, s, plain)

	got, err := s.Pending(t.Context(), at, 30*time.Minute)
	must.Do(t, err)

	want := []store.Pending{
		{Kind: "Cluster", Count: 3, Stuck: 2, LongestSeconds: 3 * 3600},
		{Kind: "Cluster", Deleting: true, Count: 2, Stuck: 1, LongestSeconds: 2 * 3600},
	}
	for i := range got {
		got[i].LongestSeconds = math.Round(got[i].LongestSeconds)
	}

	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}
