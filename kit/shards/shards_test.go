// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package shards_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/hyperfleet/hyperfleet/kit/shards"
)

func TestLeaseName(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		areas []string
		shard string
	}{
		"hyperfleet-runners":            {[]string{"runners"}, ""},
		"hyperfleet-networking-runners": {[]string{"networking", "runners"}, ""},
		"hyperfleet-runners.a-b":        {[]string{"runners"}, "a-b"},
	} {
		if got := shards.LeaseName(append(tc.areas, tc.areas[0]), tc.shard); got != name {
			t.Errorf("LeaseName(%v, %q) = %s, want %s", tc.areas, tc.shard, got, name)
		}

		areas, shard, ok := shards.ParseLeaseName(name)
		if !ok || !slices.Equal(areas, tc.areas) || shard != tc.shard {
			t.Errorf("ParseLeaseName(%s) = %v, %q, %v", name, areas, shard, ok)
		}
	}

	for _, name := range []string{"hyperfleet-platform", "other-runners", "hyperfleet-", ""} {
		if _, _, ok := shards.ParseLeaseName(name); ok {
			t.Errorf("ParseLeaseName(%q) accepts the Lease of another program", name)
		}
	}
}

func TestLabels(t *testing.T) {
	t.Parallel()

	if got := shards.NewLabels(nil); got != nil {
		t.Errorf("labels of all namespaces: %v", got)
	}

	if _, isLimited := shards.ParseLabels(map[string]string{"app": "x"}); isLimited {
		t.Error("a Lease without our labels is that of an operator with some namespaces")
	}

	// Renewals of a Lease add labels and remove none.
	labels := shards.NewLabels([]string{"team-b", "team-a", "team-a"})
	maps.Copy(labels, shards.NewLabels([]string{"team-c", "team-a"}))

	if got, isLimited := shards.ParseLabels(labels); !isLimited || !slices.Equal(got, []string{"team-a", "team-c"}) {
		t.Errorf("namespaces %v, want those of the last configuration", got)
	}
}
