// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// usesFile has the permissions that accounts use, by the test program that uses them. Each of these programs fails
// if it does not use one of its rows, or uses a permission in no row (kube.WithUses).
const usesFile = "testdata/uses.yaml"

// TestUsesAreComparedInMakeTest checks that the programs compare their uses in `make test`, which leaves tests out.
func TestUsesAreComparedInMakeTest(t *testing.T) {
	t.Parallel()

	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}

	skip := regexp.MustCompile(`(?m)^SKIP := (.+)$`).FindSubmatch(makefile)
	if len(skip) < 2 || !kube.SkipsOnlyE2E(string(skip[1])+"|^checkout 0123$") {
		t.Errorf("the tests that make test skips (%q) are not those that test/kube/uses.go expects", skip)
	}

	if kube.SkipsOnlyE2E("TestClaim") {
		t.Error("a run without TestClaim is taken for a full one")
	}
}

// readGranted returns the permissions of an area's account, except those for Secrets in namespaces that users
// choose.
func readGranted(t *testing.T, area string) []string {
	t.Helper()

	return readRights(t, "../../deploy/rbac/"+area+".yaml", "Role", "ClusterRole")
}

// readRights returns the permissions in the roles of a file that have one of the kinds.
func readRights(t *testing.T, file string, kinds ...string) []string {
	t.Helper()

	objects, err := kubeproc.ReadObjects(file)
	if err != nil {
		t.Fatal(err)
	}

	var out []string

	for _, object := range objects {
		if !slices.Contains(kinds, object.GetKind()) {
			continue
		}

		for _, rule := range convert[rbacv1.ClusterRole](t, object).Rules {
			names := rule.ResourceNames
			if len(names) == 0 {
				names = []string{""}
			}

			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						for _, name := range names {
							out = append(out, kube.Use{Verb: verb, Group: group, Resource: resource, Name: name}.String())
						}
					}
				}
			}
		}
	}

	return out
}

// TestNoRuleIsUnused checks that an area's account has no unused permission, and uses only permissions that it
// has.
func TestNoRuleIsUnused(t *testing.T) {
	t.Parallel()

	raw, err := os.ReadFile(usesFile)
	if err != nil {
		t.Fatal(err)
	}

	uses := map[string]map[string][]string{}
	if err := yaml.UnmarshalStrict(raw, &uses); err != nil {
		t.Fatal(err)
	}

	for _, area := range []string{"runners", "networking", "hosts", "bridge"} {
		var used []string

		for _, account := range []string{kube.EveryArea, "hyperfleet-" + area} {
			for _, rows := range uses[account] {
				used = append(used, rows...)
			}
		}

		rights := readGranted(t, area)

		for _, right := range rights {
			if !slices.Contains(used, right) {
				t.Errorf("hyperfleet-%s has the unused permission %q: remove it from the role, or add a row to %s", area, right, usesFile)
			}
		}

		for _, use := range used {
			// The keys of hosts are in namespaces that users choose (deploy/namespace-secrets).
			if !slices.Contains(rights, use) && (area != "hosts" || use != "get secrets" && use != "patch secrets") {
				t.Errorf("hyperfleet-%s uses %q without permission", area, use)
			}
		}
	}
}

// TestShardsShareTheRights checks that the roles of several operators that divide the namespaces have exactly the
// permissions of the generated ClusterRole.
func TestShardsShareTheRights(t *testing.T) {
	t.Parallel()

	sort := func(rights []string) []string { slices.Sort(rights); return slices.Compact(rights) }
	whole := sort(readRights(t, "../../deploy/rbac/runners.yaml", "ClusterRole"))

	if diff := cmp.Diff(whole, sort(readRights(t, "../../deploy/shards/roles.yaml", "ClusterRole"))); diff != "" {
		t.Errorf("deploy/shards/roles.yaml differs from the ClusterRole in deploy/rbac/runners.yaml (-want +got):\n%s", diff)
	}
}
