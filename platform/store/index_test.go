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

// Lists and searches among 10,000 resources, beside the read of one by its id, as which
// they are also told: "gets" is how many such reads one takes.
func BenchmarkReads(b *testing.B) {
	url := server.Database(b)
	s := open(b, url)
	crowd(b, url, crowded)

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
		"lastPage":          {Kind: "Cluster", Size: 100, Page: crowded / 100},
		"label":             {Kind: "Cluster", Search: "labels.shard='77'"},
		"condition":         {Kind: "Cluster", Search: "status.conditions.Reconciled='False'"},
		"labelAndCondition": {Kind: "Cluster", Search: "labels.tier='gold' and status.conditions.Reconciled='False'"},
		"spec":              {Kind: "Cluster", Search: "spec.replicas=3"},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, _, err := s.List(context.Background(), query); err != nil {
					b.Fatal(err)
				}
			}

			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/one, "gets/op")
		})
	}
}
