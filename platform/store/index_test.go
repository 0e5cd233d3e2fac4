// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/platform/store"
)

const crowded = 10_000

func TestIndexesAnswerSearches(t *testing.T) {
	url := server.Database(t)
	s := open(t, url)
	crowd(t, url, crowded)

	cases := map[string]struct {
		query store.ListQuery
		total int
		// indexes of which one is used.
		indexes []string
	}{
		"label": {
			store.ListQuery{Kind: "Cluster", Search: "labels.tier='gold'"}, crowded / 100, []string{"resources_labels"},
		},
		"condition": {
			store.ListQuery{Kind: "Cluster", Search: "status.conditions.Available='False'"}, crowded / 40,
			[]string{"resources_conditions"},
		},
		"condition that is asked for most": {
			store.ListQuery{Kind: "Cluster", Search: "status.conditions.Reconciled='False'"}, crowded / 50,
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
			store.ListQuery{Kind: "Cluster", Search: "spec.network.vlan = 80"}, crowded / 1000, []string{"resources_spec"},
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

			// A page may rather be found by walking down from the newest.
			if !slices.ContainsFunc(tc.indexes, func(index string) bool { return strings.Contains(count, index) }) {
				t.Errorf("the count uses none of %s:\n%s", tc.indexes, count)
			}

			if wants := slices.Concat(tc.indexes, []string{"resources_created", "resources_kind_created"}); !slices.ContainsFunc(wants,
				func(index string) bool { return strings.Contains(page, index) }) {
				t.Errorf("the page uses none of %s:\n%s", wants, page)
			}

			if _, total := names(t, s, tc.query); total != tc.total {
				t.Errorf("found %d, want %d", total, tc.total)
			}
		})
	}

	// The newest are read off an index, without a sort of all.
	if _, page := store.Plans(t, s, store.ListQuery{Kind: "NodePool"}); !strings.Contains(page, "resources_kind_created") {
		t.Errorf("a page of a kind does not use its index:\n%s", page)
	}
}

// Lists and searches among 50,000 resources, beside the read of one by its id, as which
// they are also told: "gets" is how many such reads one takes.
func BenchmarkReads(b *testing.B) {
	const many = 50_000

	url := server.Database(b)
	s := open(b, url)
	crowd(b, url, many)

	first, _, err := s.List(context.Background(), store.ListQuery{Size: 1})
	if err != nil {
		b.Fatal(err)
	}

	const gets = 500

	start := time.Now()

	for range gets {
		get(b, s, first[0].ID)
	}

	one := float64(time.Since(start).Nanoseconds()) / gets

	for name, query := range map[string]store.ListQuery{
		"newest":            {Kind: "Cluster"},
		"newest100":         {Kind: "Cluster", Size: 100},
		"lastPage":          {Kind: "Cluster", Size: 100, Page: many / 200},
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

// How long after a change was committed another process hears of it, with 50,000 resources.
func BenchmarkFeedLag(b *testing.B) {
	url := server.Database(b)
	writer, reader := open(b, url), open(b, url)
	crowd(b, url, 50_000)

	all, _, err := writer.List(b.Context(), store.ListQuery{Size: 100})
	if err != nil {
		b.Fatal(err)
	}

	var took durations

	at := now(b, reader)

	for i := 0; b.Loop(); i++ {
		heard := make(chan store.Feed, 1)

		go func() {
			feed, err := reader.Changes(b.Context(), store.ChangeQuery{After: at, Wait: patience})
			if err != nil {
				b.Error(err)
			}

			heard <- feed
		}()

		err := writer.InTx(b.Context(), func(ctx context.Context, tx *store.Tx) error {
			return change(ctx, tx, all[i%len(all)].ID)
		})
		if err != nil {
			b.Fatal(err)
		}

		took.time(func() { at = (<-heard).Next })
	}

	took.report(b)
}

// durations are those of one benchmark.
type durations []time.Duration

func (d *durations) time(do func()) {
	begin := time.Now()

	do()

	*d = append(*d, time.Since(begin))
}

// report tells the one that 95 of 100 are no longer than.
func (d *durations) report(b *testing.B) {
	b.Helper()
	slices.Sort(*d)
	b.ReportMetric(float64((*d)[len(*d)*95/100].Microseconds())/1000, "p95-ms")
}
