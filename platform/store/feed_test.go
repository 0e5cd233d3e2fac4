// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/platform/store"
	"github.com/hyperfleet/hyperfleet/test/fleetapi"
	"github.com/hyperfleet/hyperfleet/test/must"
)

func readChanges(t testing.TB, s *store.Store, query store.ChangeQuery) store.Feed {
	t.Helper()

	feed, err := s.Changes(context.Background(), query)
	must.Do(t, err)

	return feed
}

func readLatestCursor(t testing.TB, s *store.Store) string {
	t.Helper()

	feed := readChanges(t, s, store.ChangeQuery{})
	if len(feed.Items) > 0 {
		t.Fatalf("%d changes without a cursor, want none", len(feed.Items))
	}

	return feed.Next
}

func TestFeedContents(t *testing.T) {
	s := newStore(t)
	insert(t, s, newCluster("before"))
	start := readLatestCursor(t, s)

	if feed := readChanges(t, s, store.ChangeQuery{After: start}); len(feed.Items) > 0 || feed.Next != start {
		t.Errorf("changes without a write: %+v", feed)
	}

	c := newCluster("c")
	c.Tenancy = map[string]string{"organization": "o1"}
	stored := insert(t, s, c)[0]
	pool := insert(t, s, store.Resource{
		Kind: "NodePool", Name: "p", Spec: []byte(`{}`), Generation: 1, OwnerID: stored.ID, OwnerKind: "Cluster",
	})[0]

	ofCluster := store.Change{Kind: "Cluster", ID: stored.ID, Generation: 1, Operation: store.OperationCreated}
	ofPool := store.Change{Kind: "NodePool", ID: pool.ID, OwnerID: stored.ID, Generation: 1, Operation: store.OperationCreated}

	cases := map[string]struct {
		query store.ChangeQuery
		want  []store.Change
	}{
		"all":               {store.ChangeQuery{}, []store.Change{ofCluster, ofPool}},
		"of a kind":         {store.ChangeQuery{Kind: "NodePool"}, []store.Change{ofPool}},
		"of a tenant":       {store.ChangeQuery{Tenancy: map[string]string{"organization": "o1"}}, []store.Change{ofCluster}},
		"a page":            {store.ChangeQuery{Limit: 1}, []store.Change{ofCluster}},
		"of an unused kind": {store.ChangeQuery{Kind: "Gadget"}, nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.query.After = start
			feed := readChanges(t, s, tc.query)

			if diff := cmp.Diff(tc.want, feed.Items); diff != "" {
				t.Errorf("changes (-want +got):\n%s", diff)
			}

			tc.query.After, tc.query.Limit = feed.Next, 0
			if name != "a page" {
				tc.want = []store.Change{ofPool}
			}

			if rest := readChanges(t, s, tc.query); name == "a page" && len(rest.Items) != 1 || name != "a page" && len(rest.Items) > 0 {
				t.Errorf("changes after the cursor: %+v", rest.Items)
			}
		})
	}
}

// runWriter commits and rolls back slow transactions that change several resources. It always changes
// them in the same order, so that the transactions do not deadlock.
func runWriter(s *store.Store, ids []string, seed uint64, rounds int) error {
	random := rand.New(rand.NewPCG(seed, 1))

	for range rounds {
		err := s.InTx(context.Background(), func(ctx context.Context, tx *store.Tx) error {
			for _, id := range ids {
				if random.IntN(3) > 0 {
					continue
				}

				if err := updateResource(ctx, tx, id); err != nil {
					return err
				}

				time.Sleep(time.Duration(random.IntN(3)) * time.Millisecond)
			}

			if random.IntN(5) == 0 {
				return errRollBack
			}

			return nil
		})
		if err != nil && !errors.Is(err, errRollBack) {
			return err
		}
	}

	return nil
}

// followFeed reads the feed until it has seen every resource's last generation, and returns which
// changes were out of order. The last generations are known after the writers have ended.
func followFeed(s *store.Store, after string, limit int, ended <-chan struct{}, last func() map[string]int32) error {
	generations := map[string]int32{}

	for {
		var final map[string]int32
		select {
		case <-ended:
			final = last()
		default:
		}

		feed, err := s.Changes(context.Background(), store.ChangeQuery{After: after, Limit: limit, Wait: 5 * time.Millisecond})
		if err != nil {
			return err
		}

		after = feed.Next

		for _, change := range feed.Items {
			before := max(generations[change.ID], 1)
			if change.Generation != before+1 {
				return fmt.Errorf("got generation %d of %s after generation %d", change.Generation, change.ID, before)
			}

			generations[change.ID] = change.Generation
		}

		if final != nil && len(feed.Items) == 0 {
			for id, generation := range final {
				if max(generations[id], 1) != generation {
					return fmt.Errorf("got changes of %s up to generation %d, want up to %d", id, generations[id], generation)
				}
			}

			return nil
		}
	}
}

// Feature: hyperfleet-operator, Property: the change feed misses nothing and keeps the order of each resource
func TestPropertyTheFeedMissesNothing(t *testing.T) {
	url := fleetapi.NewDatabase(t, server)
	// There are two replicas. Each receives the changes of the other.
	s, other := openStore(t, url), openStore(t, url)

	run := 0

	property.Check(t, "each follower gets each resource's changes once, in order", property.Options{Brief: 10}, prop.ForAll(
		func(seed uint64, resources, writers, limit int) (bool, error) {
			run++

			var clusters []store.Resource
			for i := range resources {
				clusters = append(clusters, newCluster(fmt.Sprintf("c%d-%d", run, i)))
			}

			var ids []string
			for _, c := range insert(t, s, clusters...) {
				ids = append(ids, c.ID)
			}

			start := readLatestCursor(t, s)
			ended := make(chan struct{})
			results := make(chan error, 2)
			last := func() map[string]int32 {
				final := map[string]int32{}
				for _, id := range ids {
					final[id] = getResource(t, s, id).Generation
				}

				return final
			}

			for _, reader := range []*store.Store{s, other} {
				go func() { results <- followFeed(reader, start, limit, ended, last) }()
			}

			var (
				group  sync.WaitGroup
				failed = make(chan error, writers)
			)

			for w := range writers {
				group.Go(func() { failed <- runWriter(s, ids, seed+uint64(w), 4) })
			}

			group.Wait()
			close(failed)
			close(ended)

			errs := errors.Join(<-results, <-results)
			for err := range failed {
				errs = errors.Join(errs, err)
			}

			return errs == nil, errs
		},
		gen.UInt64(), gen.IntRange(1, 6), gen.IntRange(2, 8), gen.IntRange(1, 20),
	))
}

// updateResource updates a resource.
func updateResource(ctx context.Context, tx *store.Tx, id string) error {
	r, err := tx.GetForUpdate(ctx, id)
	if err != nil {
		return err
	}

	r.Generation++
	if _, err := tx.Update(ctx, r); err != nil {
		return err
	}

	return recordChange(ctx, tx, r, store.OperationUpdated)
}

// recordChange records a change that the database has before the transaction ends, because the next
// read sends it.
func recordChange(ctx context.Context, tx *store.Tx, r store.Resource, operation string) error {
	tx.RecordChange(r, operation)

	_, err := tx.Get(ctx, r.ID)

	return err
}

// An order by transaction ID is wrong in this case: the second writer's transaction is older than
// that of a third party, and the first writer's is younger than both.
func TestAnOldTransactionDoesNotReorder(t *testing.T) {
	s := newStore(t)
	stored := insert(t, s, newCluster("contended"), newCluster("bystander"), newCluster("third"))
	start := readLatestCursor(t, s)

	step := make(chan struct{})

	var group sync.WaitGroup

	begun := make(chan struct{})
	release := make(chan struct{})

	group.Go(func() { // the second writer, which begins first
		err := s.InTx(context.Background(), func(ctx context.Context, tx *store.Tx) error {
			if err := updateResource(ctx, tx, stored[1].ID); err != nil {
				return err
			}

			close(begun)
			<-step

			return updateResource(ctx, tx, stored[0].ID)
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-begun

	held := make(chan struct{})

	group.Go(func() { // the third party, which stays
		err := s.InTx(context.Background(), func(ctx context.Context, tx *store.Tx) error {
			if err := updateResource(ctx, tx, stored[2].ID); err != nil {
				return err
			}

			close(held)
			<-release

			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-held

	// The first writer begins last and commits first.
	must.Do(t, s.InTx(t.Context(), func(ctx context.Context, tx *store.Tx) error { return updateResource(ctx, tx, stored[0].ID) }))

	if feed := readChanges(t, s, store.ChangeQuery{After: start}); len(feed.Items) > 0 {
		t.Errorf("got %+v while older transactions are open", feed.Items)
	}

	close(step)

	var generations []int32

	after := start
	listen := func() {
		feed := readChanges(t, s, store.ChangeQuery{After: after, Wait: 50 * time.Millisecond})
		after = feed.Next

		for _, c := range feed.Items {
			if c.ID == stored[0].ID {
				generations = append(generations, c.Generation)
			}
		}
	}

	for range 5 {
		listen()
	}

	close(release)
	group.Wait()

	for deadline := time.Now().Add(waitTimeout); len(generations) < 2 && time.Now().Before(deadline); {
		listen()
	}

	if diff := cmp.Diff([]int32{2, 3}, generations); diff != "" {
		t.Errorf("generations of the contended resource (-want +got):\n%s", diff)
	}
}

func TestWaitersAreWoken(t *testing.T) {
	url := fleetapi.NewDatabase(t, server)
	s, other := openStore(t, url), openStore(t, url)
	start := readLatestCursor(t, s)
	feeds := make(chan store.Feed, 2)

	for _, reader := range []*store.Store{s, other} {
		go func() {
			feed, err := reader.Changes(context.Background(), store.ChangeQuery{After: start, Wait: 2 * waitTimeout})
			if err != nil {
				t.Error(err)
			}

			feeds <- feed
		}()
	}

	insert(t, s, newCluster("c"))

	for range 2 {
		select {
		case feed := <-feeds:
			if len(feed.Items) != 1 {
				t.Errorf("a waiting reader got %d changes, want 1", len(feed.Items))
			}
		case <-time.After(waitTimeout):
			t.Fatal("the waiting reader was not woken")
		}
	}
}

func TestWaitingEnds(t *testing.T) {
	s := newStore(t)
	start := readLatestCursor(t, s)

	if feed := readChanges(t, s, store.ChangeQuery{After: start, Wait: time.Millisecond}); feed.Next == "" || len(feed.Items) > 0 {
		t.Errorf("after the wait: %+v, want only a cursor", feed)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	if _, err := s.Changes(ctx, store.ChangeQuery{After: start, Wait: waitTimeout}); !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled caller: error %v, want %v", err, context.Canceled)
	}

	done := make(chan error, 1)

	go func() {
		_, err := s.Changes(context.Background(), store.ChangeQuery{After: start, Wait: 10 * waitTimeout})
		done <- err
	}()

	s.Close()

	select {
	case <-done: // with or without an error
	case <-time.After(waitTimeout):
		t.Error("callers of a closed store still wait")
	}
}

func TestUnusableCursors(t *testing.T) {
	s := newStore(t)
	old := readLatestCursor(t, s)

	insert(t, s, newCluster("a"), newCluster("b"))
	between := readChanges(t, s, store.ChangeQuery{After: old, Limit: 1}).Next
	current := readLatestCursor(t, s)

	if removed, err := s.PruneChanges(t.Context(), time.Hour); err != nil || removed != 0 {
		t.Fatalf("pruned %d recent changes, error %v", removed, err)
	}

	if feed := readChanges(t, s, store.ChangeQuery{After: old}); len(feed.Items) != 2 {
		t.Fatalf("got %d changes, want 2", len(feed.Items))
	}

	if removed, err := s.PruneChanges(t.Context(), 0); err != nil || removed != 2 {
		t.Fatalf("pruned %d changes, error %v, want 2", removed, err)
	}

	// It has the same number of changes, so that only the tokens differ.
	other := openStore(t, server.NewDatabase(t))
	for range 2 {
		insert(t, other, newCluster(strconv.FormatUint(rand.Uint64(), 10)))
	}

	cases := map[string]struct {
		cursor string
		want   error
	}{
		"before pruned changes":  {old, store.ErrCursorGone},
		"between pruned changes": {between, store.ErrCursorGone},
		"current":                {current, nil},
		"of another database":    {readLatestCursor(t, other), store.ErrCursorGone},
		"of the future":          {"Af____8P_wE", store.ErrCursorGone},
		"not base64":             {"%", store.ErrCursorMalformed},
		"of another version":     {"AgEB", store.ErrCursorMalformed},
		"too short":              {"AQE", store.ErrCursorMalformed},
		"too long":               {current + "AAAA", store.ErrCursorMalformed},
		"a number out of range":  {"AQH__________________wE", store.ErrCursorMalformed},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err := s.Changes(t.Context(), store.ChangeQuery{After: tc.cursor}); !errors.Is(err, tc.want) {
				t.Errorf("error %v, want %v", err, tc.want)
			}
		})
	}
}

func TestPruningKeepsPendingChanges(t *testing.T) {
	url := fleetapi.NewDatabase(t, server)
	s := openStore(t, url)
	start := readLatestCursor(t, s)
	there, finish, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)

	go func() {
		ended <- s.InTx(context.Background(), func(ctx context.Context, tx *store.Tx) error {
			r, err := tx.Insert(ctx, newCluster("slow"))
			if err != nil {
				return err
			}

			if err := recordChange(ctx, tx, r, store.OperationCreated); err != nil {
				return err
			}

			close(there)
			<-finish

			return nil
		})
	}()

	<-there
	insert(t, s, newCluster("quick"))

	if removed, err := s.PruneChanges(t.Context(), 0); err != nil || removed != 0 {
		t.Fatalf("pruned %d changes that no reader could have read, error %v", removed, err)
	}

	close(finish)

	must.Do(t, <-ended)

	if feed := readChanges(t, s, store.ChangeQuery{After: start}); len(feed.Items) != 2 {
		t.Errorf("got %d changes, want 2", len(feed.Items))
	}
}

func TestChangeNumberWrapsAround(t *testing.T) {
	url := fleetapi.NewDatabase(t, server)
	s := openStore(t, url)

	conn, err := pgx.Connect(t.Context(), url)
	must.Do(t, err)
	defer conn.Close(context.Background())

	// The locks contain only the lower 32 bits of the numbers.
	if _, err := conn.Exec(t.Context(), "select setval('change_seq', 4294967294)"); err != nil {
		t.Fatal(err)
	}

	after := readLatestCursor(t, s)

	for i := range 5 {
		c := insert(t, s, newCluster(fmt.Sprint("c", i)))[0]

		feed := readChanges(t, s, store.ChangeQuery{After: after, Wait: waitTimeout})
		if len(feed.Items) != 1 || feed.Items[0].ID != c.ID {
			t.Fatalf("change %d: got %+v", i, feed.Items)
		}

		after = feed.Next
	}
}
