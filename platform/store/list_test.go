// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/leanovate/gopter"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/platform/search"
	"github.com/hyperfleet/hyperfleet/platform/store"
	"github.com/hyperfleet/hyperfleet/test/fleetapi"
	"github.com/hyperfleet/hyperfleet/test/must"
)

func listNames(t testing.TB, s *store.Store, query store.ListQuery) ([]string, int) {
	t.Helper()

	resources, total, err := s.List(context.Background(), query)
	if err != nil {
		t.Fatalf("list %+v: %v", query, err)
	}

	var found []string
	for _, r := range resources {
		found = append(found, r.Name)
	}

	return found, total
}

// insertSamples stores resources that differ in every field that a search can use.
func insertSamples(t testing.TB, s *store.Store) map[string]store.Resource {
	t.Helper()

	ant, bee := newCluster("ant"), newCluster("bee")
	ant.Labels = map[string]string{"tier": "gold", "example.io/team": "a", "quoted'key": "x"}
	ant.Spec = json.RawMessage(`{"replicas": 3, "on": true, "region": {"name": "eu"}, "list": ["x", "y"], "none": null}`)
	ant.Conditions = newReconciled("True", newTime())
	bee.Labels = map[string]string{"tier": "silver"}
	bee.Generation, bee.CreatedTime = 2, newTime().Add(time.Second)
	bee.Spec = json.RawMessage(`{"replicas": "3", "on": false, "region": {"name": "us"}}`)
	bee.Conditions = newReconciled("False", newTime().Add(time.Hour))
	bee.Tenancy = map[string]string{"organization": "o1", "project": "p"}

	stored := insert(t, s, ant, bee)

	deleted := newTime().Add(time.Minute)
	cow := store.Resource{
		Kind: "NodePool", Name: "cow", Spec: json.RawMessage(`{}`), Generation: 3, OwnerID: stored[0].ID, OwnerKind: "Cluster",
		CreatedTime: newTime().Add(2 * time.Second), UpdatedTime: newTime(), DeletedTime: &deleted, DeletedBy: "bob",
		References: map[string][]store.Ref{"uses": {{ID: stored[1].ID}, {ID: stored[0].ID}}, "likes": {{ID: stored[0].ID}}},
	}

	all := map[string]store.Resource{}
	for _, r := range append(stored, insert(t, s, cow)...) {
		all[r.Name] = r
	}

	return all
}

func TestList(t *testing.T) {
	s := newStore(t)
	all := insertSamples(t, s)

	cases := map[string]struct {
		query store.ListQuery
		want  []string
		total int
	}{
		"all, newest first":           {store.ListQuery{}, []string{"cow", "bee", "ant"}, 3},
		"of a kind":                   {store.ListQuery{Kind: "Cluster"}, []string{"bee", "ant"}, 2},
		"below a parent":              {store.ListQuery{ParentID: all["ant"].ID}, []string{"cow"}, 1},
		"below a missing parent":      {store.ListQuery{ParentID: "x"}, nil, 0},
		"first page":                  {store.ListQuery{Order: "name", Size: 2}, []string{"ant", "bee"}, 3},
		"second page":                 {store.ListQuery{Order: "name", Size: 2, Offset: 2}, []string{"cow"}, 3},
		"a page after the last":       {store.ListQuery{Offset: 160}, nil, 3},
		"a page out of range":         {store.ListQuery{Offset: 1 << 62, Size: 100}, nil, 3},
		"referrers of ant":            {store.ListQuery{RefTargetID: all["ant"].ID}, []string{"cow"}, 1},
		"referrers by type":           {store.ListQuery{RefType: "likes", RefTargetID: all["ant"].ID}, []string{"cow"}, 1},
		"no referrers by type":        {store.ListQuery{RefType: "likes", RefTargetID: all["bee"].ID}, nil, 0},
		"of a tenant":                 {store.ListQuery{Tenancy: map[string]string{"organization": "o1"}}, []string{"bee"}, 1},
		"of another tenant":           {store.ListQuery{Tenancy: map[string]string{"organization": "o2"}}, nil, 0},
		"by deletion time, ascending": {store.ListQuery{Order: "deleted_time asc, name desc"}, []string{"cow", "bee", "ant"}, 3},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, total := listNames(t, s, tc.query)
			if diff := cmp.Diff(tc.want, got); diff != "" || total != tc.total {
				t.Errorf("total %d, want %d; names (-want +got):\n%s", total, tc.total, diff)
			}
		})
	}
}

func TestSearch(t *testing.T) {
	s := newStore(t)
	all := insertSamples(t, s)

	// Combinations of conditions and orders are tested in TestPropertySearchMeansWhatItSays.
	cases := map[string][]string{
		`labels.tier is null`:                                                       {"cow"},
		`labels.'quoted''key'='x'`:                                                  {"ant"},
		`labels.tier in ('gold','silver')`:                                          {"ant", "bee"},
		`labels.tier not in ('gold')`:                                               {"bee", "cow"},
		`tenancy.project='p'`:                                                       {"bee"},
		`status.conditions.Reconciled.observed_generation=1`:                        {"ant", "bee"},
		`status.conditions.Reconciled.last_updated_time>'2026-03-01T12:30:00Z'`:     {"bee"},
		`not status.conditions.Reconciled.last_updated_time>'2026-03-01T12:30:00Z'`: {"ant", "cow"},
		`status.conditions.Missing is null`:                                         {"ant", "bee", "cow"},
		`spec.replicas=3`:                                                           {"ant"},
		`spec.replicas=3.0`:                                                         {"ant"},
		`spec.replicas='3'`:                                                         {"ant", "bee"},
		`spec.replicas='3.0'`:                                                       {"ant"},
		`spec.replicas in ('3')`:                                                    {"ant", "bee"},
		`spec.replicas!='3'`:                                                        {"cow"},
		`spec.replicas=' 3'`:                                                        nil,
		`spec.replicas>='3'`:                                                        {"bee"},
		`spec.on='false'`:                                                           {"bee"},
		`spec.on='False'`:                                                           nil,
		`spec.replicas>=2`:                                                          {"ant"},
		`spec.on=false`:                                                             {"bee"},
		`spec.region.name='eu'`:                                                     {"ant"},
		`spec.list.'1'='y'`:                                                         {"ant"},
		`spec.none is null`:                                                         {"ant", "bee", "cow"},
		`spec.region is not null`:                                                   {"ant", "bee"},
		`generation in (2,3)`:                                                       {"bee", "cow"},
		`deleted_time is null`:                                                      {"ant", "bee"},
		`deleted_time<'2027-01-01'`:                                                 {"cow"},
		`not deleted_time<'2027-01-01'`:                                             {"ant", "bee"},
		`created_time>'2026-03-01T12:00:00.5Z'`:                                     {"bee", "cow"},
		`created_time='2026-03-01T13:00:00.123456+01:00'`:                           {"ant"},
		`created_by='ann'`:                                                          {"ant", "bee"},
		`created_by!='ann'`:                                                         {"cow"},
		`deleted_by is null`:                                                        {"ant", "bee"},
		`id='` + all["cow"].ID + `'`:                                                {"cow"},
		`id in ('` + all["cow"].ID + `','` + strings.ToUpper(all["ant"].ID) + `')`: {"ant", "cow"},
		`owner_references.id='` + all["ant"].ID + `'`:                              {"cow"},
		`owner_references.kind!='Cluster'`:                                         {"ant", "bee"},
		`name='ant'' or 1=1 --'`:                                                   nil,
	}
	for text, want := range cases {
		t.Run(text, func(t *testing.T) {
			got, total := listNames(t, s, store.ListQuery{Search: text, Order: "name"})
			if diff := cmp.Diff(want, got); diff != "" || total != len(want) {
				t.Errorf("total %d; names (-want +got):\n%s", total, diff)
			}
		})
	}

	var wrong *search.Error
	if _, _, err := s.List(t.Context(), store.ListQuery{Search: "shoe_size='x'"}); !errors.As(err, &wrong) {
		t.Errorf("invalid condition: error %v, want one with a column", err)
	}

	if _, _, err := s.List(t.Context(), store.ListQuery{Order: "shoe_size"}); !errors.As(err, &wrong) {
		t.Errorf("invalid order: error %v, want one with a column", err)
	}
}

// condition is a random condition with its expected meaning.
type condition struct {
	text string
	is   func(store.Resource) bool
}

func genAtom() gopter.Gen {
	values := []string{"", "a", "b", "B", "ä", "it's", `"`, `\`, "%"}
	less := func(operator string, compared int) bool {
		return map[string]bool{
			"=": compared == 0, "!=": compared != 0, "<": compared < 0, "<=": compared <= 0, ">": compared > 0, ">=": compared >= 0,
		}[operator]
	}

	return gopter.CombineGens(
		gen.OneConstOf("labels.k", "labels.'x.y/z'", "spec.v", "generation", "status.conditions.C", "name"),
		gen.OneConstOf("=", "!=", "<", "<=", ">", ">="), gen.OneConstOf(0, 1, 2, 3, 4, 5, 6, 7, 8),
	).Map(func(in []any) condition {
		field, operator, at := in[0].(string), in[1].(string), in[2].(int)
		value := values[at]
		quoted := "'" + strings.ReplaceAll(value, "'", "''") + "'"

		text := func(of func(store.Resource) (string, bool)) func(store.Resource) bool {
			return func(r store.Resource) bool {
				have, ok := of(r)
				if !ok {
					return operator == "!="
				}

				return less(operator, strings.Compare(have, value))
			}
		}

		switch field {
		case "labels.k", "labels.'x.y/z'":
			key := map[string]string{"labels.k": "k", "labels.'x.y/z'": "x.y/z"}[field]

			return condition{field + operator + quoted, text(func(r store.Resource) (string, bool) {
				have, ok := r.Labels[key]

				return have, ok
			})}
		case "spec.v":
			return condition{field + " " + operator + " " + quoted, text(func(r store.Resource) (string, bool) {
				var spec struct{ V any }
				_ = json.Unmarshal(r.Spec, &spec)
				have, ok := spec.V.(string)

				return have, ok
			})}
		case "status.conditions.C":
			return condition{field + operator + quoted, text(func(r store.Resource) (string, bool) {
				for _, c := range r.Conditions {
					if c.Type == "C" {
						return c.Status, true
					}
				}

				return "", false
			})}
		case "name":
			return condition{field + operator + quoted, text(func(r store.Resource) (string, bool) { return r.Name, true })}
		default:
			return condition{fmt.Sprint(field, operator, at), func(r store.Resource) bool { return less(operator, int(r.Generation)-at) }}
		}
	})
}

func genConditions(depth int) gopter.Gen {
	if depth == 0 {
		return genAtom()
	}

	inner, other := genConditions(depth-1), genConditions(depth-1)

	return gen.OneGenOf(genAtom(),
		inner.Map(func(a condition) condition {
			return condition{"not (" + a.text + ")", func(r store.Resource) bool { return !a.is(r) }}
		}),
		gopter.CombineGens(inner, other).Map(func(in []any) condition {
			a, b := in[0].(condition), in[1].(condition)

			return condition{"(" + a.text + ") and (" + b.text + ")", func(r store.Resource) bool { return a.is(r) && b.is(r) }}
		}),
		gopter.CombineGens(inner, other).Map(func(in []any) condition {
			a, b := in[0].(condition), in[1].(condition)

			return condition{"((" + a.text + ") or (" + b.text + "))", func(r store.Resource) bool { return a.is(r) || b.is(r) }}
		}),
	)
}

// Feature: hyperfleet-operator, Property: a search finds the resources of which its condition is true, and no others
func TestPropertySearchMeansWhatItSays(t *testing.T) {
	s := newStore(t)

	var all []store.Resource

	for i, value := range []string{"", "a", "b", "B", "ä", "it's", `"`, `\`, "%", "absent"} {
		r := newCluster(value + strconv.Itoa(i))
		r.Generation = int32(i + 1)

		if value != "absent" {
			r.Labels = map[string]string{"k": value, "x.y/z": "b"}
			spec, _ := json.Marshal(map[string]any{"v": value})
			r.Spec, r.Name = spec, "n"+value
			r.Conditions = newReconciled(value, newTime())
			r.Conditions[0].Type = "C"
		}

		if i%3 == 0 {
			r.Spec = json.RawMessage(`{"v": 1}`)
		}

		all = append(all, r)
	}

	all = insert(t, s, all...)

	property.Check(t, "a search finds the resources for which its condition is true", property.Options{Runs: 300}, prop.ForAll(func(c condition) (bool, error) {
		found, total, err := s.List(t.Context(), store.ListQuery{Search: c.text, Order: "generation", Size: 100})
		if err != nil {
			return false, fmt.Errorf("%s: %w", c.text, err)
		}

		var want, got []string

		for _, r := range all {
			if c.is(r) {
				want = append(want, r.Name)
			}
		}

		for _, r := range found {
			got = append(got, r.Name)
		}

		if !slices.Equal(want, got) || total != len(want) {
			return false, fmt.Errorf("%s: found %q (total %d), want %q", c.text, got, total, want)
		}

		return true, nil
	}, genConditions(3)))
}

// insertMany fills a database with a number of resources. One in ten is a node pool, one in a hundred is
// gold, one in fifty is not reconciled, and one in forty is not available.
func insertMany(t testing.TB, url string, number int) {
	t.Helper()

	conn, err := pgx.Connect(context.Background(), url)
	must.Do(t, err)
	defer conn.Close(context.Background())

	_, err = conn.Exec(context.Background(), `
		insert into resources (id, kind, name, spec, labels, tenancy, generation, conditions, created_time, updated_time,
		                       created_by, updated_by, deleted_by)
		select gen_random_uuid(), case when n % 10 = 9 then 'NodePool' else 'Cluster' end, 'c' || n,
		       jsonb_build_object('replicas', n % 7, 'network', jsonb_build_object('vlan', n % 1000)),
		       jsonb_build_object('tier', case when n % 100 = 0 then 'gold' else 'silver' end, 'shard', (n % 1000)::text), '{}', 1,
		       jsonb_build_object('Reconciled', jsonb_build_object('type', 'Reconciled',
		                              'status', case when n % 50 = 0 then 'False' else 'True' end,
		                              'last_transition_time', '2026-03-01T00:00:00Z'),
		                          'Available', jsonb_build_object('type', 'Available',
		                              'status', case when n % 40 = 0 then 'False' else 'True' end)),
		       '2026-03-01'::timestamptz + n * interval '1 second', '2026-03-01', 'ann', '', ''
		from generate_series(1, $1::int) n`, number)
	must.Do(t, err)

	if _, err := conn.Exec(context.Background(), "analyze resources"); err != nil {
		t.Fatal(err)
	}
}

const crowdSize = 10_000

func TestSearchesUseIndexes(t *testing.T) {
	url := fleetapi.NewDatabase(t, server)
	s := openStore(t, url)
	insertMany(t, url, crowdSize)

	cases := map[string]struct {
		query store.ListQuery
		total int
		// indexes are the indexes of which one has to be used.
		indexes []string
	}{
		"label": {
			store.ListQuery{Kind: "Cluster", Search: "labels.tier='gold'"}, crowdSize / 100, []string{"resources_labels"},
		},
		"condition": {
			store.ListQuery{Kind: "Cluster", Search: "status.conditions.Available='False'"}, crowdSize / 40,
			[]string{"resources_conditions"},
		},
		"the most frequent condition": {
			store.ListQuery{Kind: "Cluster", Search: "status.conditions.Reconciled='False'"}, crowdSize / 50,
			[]string{"resources_not_reconciled", "resources_conditions"},
		},
		"label and condition": {
			store.ListQuery{Kind: "Cluster", Search: "labels.shard='80' and status.conditions.Available='False'"}, 10,
			[]string{"resources_labels", "resources_conditions"},
		},
		"one of two labels": {
			store.ListQuery{Search: "labels.shard in ('50', '51')"}, 20, []string{"resources_labels"},
		},
		"a field of the spec": {
			store.ListQuery{Kind: "Cluster", Search: "spec.network.vlan = 80"}, crowdSize / 1000, []string{"resources_spec"},
		},
		"one of two numbers of the spec": {
			store.ListQuery{Search: "spec.network.vlan in (50, 51)"}, 20, []string{"resources_spec"},
		},
		"a name": {
			store.ListQuery{Kind: "Cluster", Search: "name='c77'"}, 1, []string{"resources_name"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			count, page := store.Plans(t, s, tc.query)
			for what, plan := range map[string]string{"count": count, "page": page} {
				if strings.Contains(plan, "Seq Scan on resources") {
					t.Errorf("%s reads the whole table:\n%s", what, plan)
				}
			}

			// A page can also be found by a scan from the newest resource.
			if !slices.ContainsFunc(tc.indexes, func(index string) bool { return strings.Contains(count, index) }) {
				t.Errorf("the count uses none of %s:\n%s", tc.indexes, count)
			}

			if wants := slices.Concat(tc.indexes, []string{"resources_created", "resources_kind_created"}); !slices.ContainsFunc(wants,
				func(index string) bool { return strings.Contains(page, index) }) {
				t.Errorf("the page uses none of %s:\n%s", wants, page)
			}

			if _, total := listNames(t, s, tc.query); total != tc.total {
				t.Errorf("found %d, want %d", total, tc.total)
			}
		})
	}

	// The newest resources are read from an index, without sorting all of them.
	if _, page := store.Plans(t, s, store.ListQuery{Kind: "NodePool"}); !strings.Contains(page, "resources_kind_created") {
		t.Errorf("a page of a kind does not use its index:\n%s", page)
	}
}

// The benchmarks list and search 50,000 resources, and read one of them by its ID for comparison.
// The metric "gets" is the time in units of one such read.
func BenchmarkReads(b *testing.B) {
	const many = 50_000

	url := fleetapi.NewDatabase(b, server)
	s := openStore(b, url)
	insertMany(b, url, many)

	first, _, err := s.List(context.Background(), store.ListQuery{Size: 1})
	if err != nil {
		b.Fatal(err)
	}

	const gets = 500

	start := time.Now()

	for range gets {
		getResource(b, s, first[0].ID)
	}

	one := float64(time.Since(start).Nanoseconds()) / gets

	for name, query := range map[string]store.ListQuery{
		"newest":            {Kind: "Cluster"},
		"newest100":         {Kind: "Cluster", Size: 100},
		"lastPage":          {Kind: "Cluster", Size: 100, Offset: many/2 - 100},
		"label":             {Kind: "Cluster", Search: "labels.shard='77'"},
		"condition":         {Kind: "Cluster", Search: "status.conditions.Reconciled='False'"},
		"labelAndCondition": {Kind: "Cluster", Search: "labels.tier='gold' and status.conditions.Reconciled='False'"},
		"spec":              {Kind: "Cluster", Search: "spec.network.vlan=77"},
		"specOfMany":        {Kind: "Cluster", Search: "spec.replicas=3"},
		"specByOrder":       {Kind: "Cluster", Search: "spec.network.vlan>=990"},
	} {
		b.Run(name, func(b *testing.B) {
			var took durations

			for b.Loop() {
				took.time(func() {
					if _, _, err := s.List(context.Background(), query); err != nil {
						b.Fatal(err)
					}
				})
			}

			took.report(b)
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/one, "gets/op")
		})
	}
}

// The benchmark measures the time from the commit of a change until another process receives it,
// with 50,000 resources.
func BenchmarkFeedLag(b *testing.B) {
	url := fleetapi.NewDatabase(b, server)
	writer, reader := openStore(b, url), openStore(b, url)
	insertMany(b, url, 50_000)

	all, _, err := writer.List(b.Context(), store.ListQuery{Size: 100})
	if err != nil {
		b.Fatal(err)
	}

	var took durations

	at := readLatestCursor(b, reader)

	for i := 0; b.Loop(); i++ {
		feeds := make(chan store.Feed, 1)

		go func() {
			feed, err := reader.Changes(b.Context(), store.ChangeQuery{After: at, Wait: waitTimeout})
			if err != nil {
				b.Error(err)
			}

			feeds <- feed
		}()

		err := writer.InTx(b.Context(), func(ctx context.Context, tx *store.Tx) error {
			return updateResource(ctx, tx, all[i%len(all)].ID)
		})
		if err != nil {
			b.Fatal(err)
		}

		took.time(func() { at = (<-feeds).Next })
	}

	took.report(b)
}

// durations are the durations of one benchmark.
type durations []time.Duration

func (d *durations) time(do func()) {
	begin := time.Now()

	do()

	*d = append(*d, time.Since(begin))
}

// report reports the 95th percentile.
func (d *durations) report(b *testing.B) {
	b.Helper()
	slices.Sort(*d)
	b.ReportMetric(float64((*d)[len(*d)*95/100].Microseconds())/1000, "p95-ms")
}

// TestPagesEndEarly checks that a page has a bound in bytes, and at least one resource.
func TestPagesEndEarly(t *testing.T) {
	s := newStore(t)

	large := newCluster("large")
	large.Spec = json.RawMessage(`{"text":"` + strings.Repeat("x", 9<<20) + `"}`)
	insert(t, s, large)

	for i := range 10 {
		small := newCluster(fmt.Sprint("small", i))
		small.Spec = json.RawMessage(`{"text":"` + strings.Repeat("y", 1<<20) + `"}`)
		insert(t, s, small)
	}

	var (
		sizes []int
		names []string
	)

	for offset := 0; offset < 11; {
		found, total, err := s.List(t.Context(), store.ListQuery{Order: "name", Offset: offset, Size: 100})
		must.Do(t, err)

		if total != 11 || len(found) == 0 {
			t.Fatalf("%d resources of %d at offset %d", len(found), total, offset)
		}

		for _, one := range found {
			names = append(names, one.Name)
		}

		sizes = append(sizes, len(found))
		offset += len(found)
	}

	if diff := cmp.Diff([]int{1, 7, 3}, sizes); diff != "" || len(names) != 11 || names[10] != "small9" {
		t.Errorf("pages of %v: %v", sizes, names)
	}
}
