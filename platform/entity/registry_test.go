// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package entity_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/platform/entity"
)

func TestRegistry(t *testing.T) {
	t.Parallel()

	registry, err := entity.New([]platform.Entity{
		{Kind: "Cluster", Plural: "clusters", RequiredAdapters: []string{"dns"}},
		{Kind: "NodePool", Plural: "nodepools", ParentKind: "Cluster", OnParentDelete: "cascade", NameMinLen: 3, NameMaxLen: 15},
		{Kind: "Backup", Plural: "backups", ParentKind: "Cluster", References: []platform.ReferenceRule{{RefType: "of", TargetKind: "NodePool", Min: 1}}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}

	cluster := registry.ByKind("Cluster")
	pool := registry.ByPlural("nodepools")

	if pool.Parent != cluster || !pool.IsCascade() || len(cluster.Children) != 2 || cluster.Children[0].IsCascade() {
		t.Errorf("%+v %+v", cluster, pool)
	}

	if cluster.NameMinLen != 1 || cluster.NameMaxLen != 63 {
		t.Errorf("names of %d to %d", cluster.NameMinLen, cluster.NameMaxLen)
	}

	if rule, found := cluster.Children[0].ReferenceRule("of"); !found || rule.Min != 1 {
		t.Errorf("%+v", rule)
	}

	if registry.ByPlural("dragons") != nil || len(registry.Kinds()) != 3 {
		t.Error("an unregistered kind was found")
	}

	for name, wrong := range map[string]bool{"ab": true, "abc": false, "a-b": false, "Abc": true, "a.b": true, "-ab": true, strings.Repeat("a", 16): true} {
		if got := pool.ValidateName(name); (got != "") != wrong {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestInvalidRegistries(t *testing.T) {
	t.Parallel()

	ref := func(target string, low, high int) []platform.ReferenceRule {
		return []platform.ReferenceRule{{RefType: "to", TargetKind: target, Min: low, Max: high}}
	}

	for _, tc := range []struct {
		name     string
		entities []platform.Entity
		want     []string
	}{
		{"none", nil, []string{"at least one"}},
		{"unknown parent", []platform.Entity{{Kind: "A", Plural: "as", ParentKind: "B"}}, []string{`parent_kind "B" is not registered`}},
		{"a cycle of owners", []platform.Entity{{Kind: "A", Plural: "as", ParentKind: "B"}, {Kind: "B", Plural: "bs", ParentKind: "A"}}, []string{"entities[0]", "A -> B -> A", "entities[1]"}},
		{"a chain into a cycle", []platform.Entity{{Kind: "A", Plural: "as", ParentKind: "B"}, {Kind: "B", Plural: "bs", ParentKind: "C"}, {Kind: "C", Plural: "cs", ParentKind: "B"}}, []string{"B -> C -> B"}},
		{"a duplicate kind", []platform.Entity{{Kind: "A", Plural: "as"}, {Kind: "A", Plural: "bs"}}, []string{"registered more than once"}},
		{"a duplicate plural", []platform.Entity{{Kind: "A", Plural: "as"}, {Kind: "B", Plural: "as"}}, []string{"already has plural"}},
		{"reserved plurals", []platform.Entity{{Kind: "A", Plural: "resources"}, {Kind: "B", Plural: "changes"}, {Kind: "C", Plural: "leases"}, {Kind: "D", Plural: "statuses"}}, []string{"resources", "changes", "leases", "statuses"}},
		{"names", []platform.Entity{{Kind: "a b", Plural: "A"}}, []string{`kind "a b"`, `plural "A"`}},
		{"bounds of names", []platform.Entity{{Kind: "A", Plural: "as", NameMinLen: 9, NameMaxLen: 3}, {Kind: "B", Plural: "bs", NameMaxLen: 64}}, []string{"name_min_len 9", "name_max_len 64"}},
		{"an unknown policy", []platform.Entity{{Kind: "A", Plural: "as", OnParentDelete: "keep"}}, []string{"restrict, cascade or orphan"}},
		{"an unknown target", []platform.Entity{{Kind: "A", Plural: "as", References: ref("B", 0, 0)}}, []string{`target_kind "B"`}},
		{"max below min", []platform.Entity{{Kind: "A", Plural: "as", References: ref("A", 3, 2)}}, []string{"max must not be less than min"}},
		{"a duplicate reference", []platform.Entity{{Kind: "A", Plural: "as", References: append(ref("A", 0, 0), ref("A", 0, 0)...)}}, []string{"listed more than once"}},
		{"an invalid reference type", []platform.Entity{{Kind: "A", Plural: "as", References: []platform.ReferenceRule{{RefType: "A b", TargetKind: "A"}}}}, []string{"ref_type"}},
		{"a cycle of required references", []platform.Entity{{Kind: "A", Plural: "as", References: ref("B", 1, 0)}, {Kind: "B", Plural: "bs", References: ref("A", 1, 1)}}, []string{"A -> B -> A"}},
		{"requires itself", []platform.Entity{{Kind: "A", Plural: "as", References: ref("A", 1, 1)}}, []string{"A -> A"}},
		{"requires its child", []platform.Entity{{Kind: "A", Plural: "as", References: ref("B", 1, 1)}, {Kind: "B", Plural: "bs", ParentKind: "A"}}, []string{"A -> B -> A"}},
		{"adapters with the same condition", []platform.Entity{{Kind: "A", Plural: "as", RequiredAdapters: []string{"a-b", "aB", "a-B"}}}, []string{`"aB"`}},
		{"a duplicate adapter", []platform.Entity{{Kind: "A", Plural: "as", RequiredAdapters: []string{"a", "a"}}}, []string{"ASuccessful"}},
		{"a mapped condition that is reserved", []platform.Entity{{Kind: "A", Plural: "as", RequiredAdapters: []string{"a"}, Conditions: []platform.MappedCondition{{Type: "Reconciled"}, {Type: "ASuccessful"}, {Type: "x"}}}}, []string{"already sets type Reconciled", "already sets type ASuccessful", "conditions[2]"}},
		{"a schema without a name", []platform.Entity{{Kind: "A", Plural: "as", RequireSpecSchema: true}}, []string{"spec_schema_name"}},
		{"a missing schema", []platform.Entity{{Kind: "A", Plural: "as", RequireSpecSchema: true, SpecSchemaName: "S"}}, []string{`no schema "S"`}},
		{"all at once", []platform.Entity{{Kind: "a", Plural: "as", ParentKind: "Z"}, {Kind: "B", Plural: "as", NameMinLen: -1}}, []string{"entities[0]", "parent_kind", "name_min_len", "already has plural"}},
	} {
		_, err := entity.New(tc.entities, nil)
		if !errors.Is(err, entity.ErrInvalid) {
			t.Errorf("%s: %v", tc.name, err)

			continue
		}

		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %v does not contain %q", tc.name, err, want)
			}
		}
	}

	// References that are not required may form cycles, and a child may require a sibling of its
	// parent.
	if _, err := entity.New([]platform.Entity{
		{Kind: "A", Plural: "as", References: ref("B", 0, 0)}, {Kind: "B", Plural: "bs", ParentKind: "A", References: ref("A", 1, 1)},
	}, nil); err != nil {
		t.Error(err)
	}
}

func TestSpecSchemas(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "schemas.yaml")
	if err := os.WriteFile(path, []byte(`
openapi: 3.0.3
info: {title: Specs, version: v1}
paths: {}
components:
  schemas:
    ClusterSpec:
      type: object
      required: [region]
      additionalProperties: false
      properties:
        region: {type: string, enum: [eu, us]}
        pools: {type: array, items: {type: object, properties: {size: {type: integer, minimum: 1}}}}
`), 0o600); err != nil {
		t.Fatal(err)
	}

	doc, err := entity.LoadSchemas(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}

	registry, err := entity.New([]platform.Entity{
		{Kind: "Cluster", Plural: "clusters", SpecSchemaName: "ClusterSpec", RequireSpecSchema: true}, {Kind: "Free", Plural: "frees"},
	}, doc)
	if err != nil {
		t.Fatal(err)
	}

	cluster := registry.ByKind("Cluster")
	free := registry.ByKind("Free")

	for _, tc := range []struct {
		name string
		spec map[string]any
		want []string
	}{
		{"fits", map[string]any{"region": "eu", "pools": []any{map[string]any{"size": 3.0}}}, nil},
		{"nothing", nil, []string{"spec.region"}},
		{"unknown field", map[string]any{"region": "eu", "zone": "z"}, []string{"spec"}},
		{"value and item", map[string]any{"region": "moon", "pools": []any{map[string]any{"size": 1.0}, map[string]any{"size": 0.0}}}, []string{"spec.pools[1].size", "spec.region"}},
	} {
		var fields []string

		for _, one := range cluster.ValidateSpec(tc.spec) {
			fields = append(fields, one.Field)

			if strings.Contains(one.Message, "moon") {
				t.Errorf("%s: the message contains the value: %s", tc.name, one.Message)
			}
		}

		if diff := cmp.Diff(tc.want, fields); diff != "" {
			t.Errorf("%s: %s", tc.name, diff)
		}
	}

	if wrong := free.ValidateSpec(map[string]any{"anything": 1}); wrong != nil {
		t.Error(wrong)
	}

	if _, err := entity.LoadSchemas(t.Context(), path+".none"); err == nil {
		t.Error("a missing file was loaded")
	}

	if doc, err := entity.LoadSchemas(t.Context(), ""); doc != nil || err != nil {
		t.Errorf("no file: %v %v", doc, err)
	}
}

func TestAdapterCondition(t *testing.T) {
	t.Parallel()

	for adapter, want := range map[string]string{
		"dns": "DnsSuccessful", "dns-zone": "DnsZoneSuccessful", "a1-b2": "A1B2Successful", "pull_secret": "PullSecretSuccessful",
	} {
		if got := entity.AdapterConditionType(adapter); got != want {
			t.Errorf("%s: %s", adapter, got)
		}
	}
}
