// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package upgrade_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
	"github.com/hyperfleet/hyperfleet/test/upgrade"
)

const currentCRDs = "../../deploy/crds"

// listReleases returns the folders of the frozen releases.
func listReleases(t *testing.T) []string {
	t.Helper()

	found, err := filepath.Glob("testdata/v*")
	if err != nil || len(found) == 0 {
		t.Fatalf("testdata has no release: %v", err)
	}

	return found
}

// readCRDs returns the CRDs in a folder by name.
func readCRDs(t *testing.T, dir string) map[string]*apiextensionsv1.CustomResourceDefinition {
	t.Helper()

	objects, err := kubeproc.ReadObjects(dir)
	if err != nil {
		t.Fatal(err)
	}

	out := map[string]*apiextensionsv1.CustomResourceDefinition{}

	for _, object := range objects {
		if object.GetKind() != "CustomResourceDefinition" {
			continue
		}

		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, crd); err != nil {
			t.Fatal(err)
		}

		out[crd.Name] = crd
	}

	return out
}

// allowedChange is an entry of testdata/allowed.yaml.
type allowedChange struct {
	// Release is the release before the change.
	Release string `json:"release"`
	Change  string `json:"change"`
	Reason  string `json:"reason"`
}

// TestAPIsStayCompatible checks that nothing that a release allowed users to write is removed, except what
// testdata/allowed.yaml lists with a reason.
func TestAPIsStayCompatible(t *testing.T) {
	t.Parallel()

	var list []allowedChange

	raw, err := os.ReadFile("testdata/allowed.yaml")
	if err != nil {
		t.Fatal(err)
	}

	if err := yaml.UnmarshalStrict(raw, &list); err != nil {
		t.Fatal(err)
	}

	left := map[string]bool{}

	for _, entry := range list {
		if entry.Reason == "" {
			t.Errorf("allowed.yaml: %s has no reason", entry.Change)
		}

		left[entry.Release+" "+entry.Change] = true
	}

	now := readCRDs(t, currentCRDs)

	for _, release := range listReleases(t) {
		before := readCRDs(t, filepath.Join(release, "crds"))
		if len(before) < 10 {
			t.Errorf("%s has %d CRDs, want at least 10", release, len(before))
		}

		for name, crd := range before {
			for _, change := range upgrade.Compare(crd, now[name]) {
				key := filepath.Base(release) + " " + change.String()
				if !left[key] {
					t.Errorf("since %s: revert this change, or add it to testdata/allowed.yaml with a reason", key)
				}

				delete(left, key)
			}
		}
	}

	for entry := range left {
		t.Errorf("allowed.yaml has an entry without a change: %s", entry)
	}
}

const schema = `
spec:
  scope: Namespaced
  names: {shortNames: [th]}
  versions:
  - name: v1
    served: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        required: [kind]
        properties:
          kind: {type: string}
          size: {type: integer, minimum: 1, maximum: 10}
          name: {type: string, maxLength: 10, pattern: "^a"}
          mode: {type: string, enum: [a, b]}
          tags: {type: array, maxItems: 3, items: {type: string, maxLength: 5}}
          more: {type: object, additionalProperties: {type: string}}
          free: {type: object, x-kubernetes-preserve-unknown-fields: true}
          rule: {type: object, x-kubernetes-validations: [{rule: "a"}]}
`

// TestCompare checks that each kind of incompatible change is found, and that compatible changes are not reported.
func TestCompare(t *testing.T) {
	t.Parallel()

	read := func(text string) *apiextensionsv1.CustomResourceDefinition {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal([]byte(text), crd); err != nil {
			t.Fatal(err)
		}

		crd.Name = "things"

		return crd
	}

	for _, tc := range []struct{ old, new, want string }{
		{"", "", ""},
		{"scope: Namespaced", "scope: Cluster", "things : the scope was Namespaced and is Cluster"},
		{"[th]", "[]", "things : the short name th was removed"},
		{"served: true", "served: false", "things v1: the version is not served any more"},
		{"subresources: {status: {}}", "subresources: {}", "things v1: the subresource status was removed"},
		{"          kind: {type: string}\n", "", "things v1.kind: the field was removed"},
		{"kind: {type: string}", "kind: {type: integer}", "things v1.kind: the type was string and is integer"},
		{"required: [kind]", "required: [kind, size]", "things v1.size: the field is required now"},
		{"required: [kind]", "required: []", ""},
		{"maximum: 10", "maximum: 9", "things v1.size: maximum was 10 and is 9"},
		{"maximum: 10", "maximum: 11", ""},
		{"minimum: 1", "minimum: 2", "things v1.size: minimum was 1 and is 2"},
		{"maxLength: 10", "maxLength: 9", "things v1.name: maxLength was 10 and is 9"},
		{"maxLength: 10", "minLength: 1", "things v1.name: minLength was not set and is 1"},
		{`pattern: "^a"`, `pattern: "^b"`, `things v1.name: the pattern was "^a" and is "^b"`},
		{`, pattern: "^a"`, "", ""},
		{`pattern: "^a"`, `x-kubernetes-validations: [{rule: "self.matches('^a')"}]`, ""},
		{`pattern: "^a"`, `x-kubernetes-validations: [{rule: "self.matches('^b')"}]`, "things v1.name: the rule self.matches('^b') is new"},
		{`{type: string, maxLength: 10, pattern: "^a"}`, `{type: string, maxLength: 10, x-kubernetes-validations: [{rule: "self.matches('')"}]}`, "things v1.name: the rule self.matches('') is new"},
		{"enum: [a, b]", "enum: [a]", `things v1.mode: the value "b" is rejected`},
		{"enum: [a, b]", "enum: [a, b, c]", ""},
		{"kind: {type: string}", "kind: {type: string, enum: [x]}", "things v1.kind: values that are not in a new enum are rejected"},
		{"items: {type: string, maxLength: 5}", "items: {type: string, maxLength: 4}", "things v1.tags[]: maxLength was 5 and is 4"},
		{"maxItems: 3", "maxItems: 2", "things v1.tags: maxItems was 3 and is 2"},
		{"maxItems: 3", "x-kubernetes-list-type: set", "things v1.tags: the list is merged differently"},
		{", additionalProperties: {type: string}", "", "things v1.more: the field is not a map any more"},
		{"additionalProperties: {type: string}", "additionalProperties: {type: integer}", "things v1.more{}: the type was string and is integer"},
		{", x-kubernetes-preserve-unknown-fields: true", "", "things v1.free: unknown fields are dropped"},
		{`[{rule: "a"}]`, `[{rule: "a"}, {rule: "b"}]`, "things v1.rule: the rule b is new"},
		{"kind: {type: string}", "kind: {type: string, format: date}", `things v1.kind: the format was "" and is "date"`},
	} {
		if !strings.Contains(schema, tc.old) {
			t.Fatalf("the schema has no %q", tc.old)
		}

		var got []string
		for _, change := range upgrade.Compare(read(schema), read(strings.Replace(schema, tc.old, tc.new, 1))) {
			got = append(got, change.String())
		}

		if diff := cmp.Diff(tc.want, strings.Join(got, "; ")); diff != "" {
			t.Errorf("%q to %q:\n%s", tc.old, tc.new, diff)
		}
	}

	if got := upgrade.Compare(read(schema), nil); len(got) != 1 || got[0].Description != "the kind was removed" {
		t.Errorf("changes of a removed CRD: %v", got)
	}
}
