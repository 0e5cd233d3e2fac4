// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"os"
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// usesFile has the permissions that accounts use, by the test program that uses them. Each of these programs fails
// if it does not use one of its rows, or uses a permission in no row (kube.WithUses).
const usesFile = "testdata/uses.yaml"

// readGranted returns the permissions of an area's account, except those for Secrets in namespaces that users
// choose.
func readGranted(t *testing.T, area string) []string {
	t.Helper()

	objects, err := kubeproc.ReadObjects("../../deploy/rbac/" + area + ".yaml")
	if err != nil {
		t.Fatal(err)
	}

	var out []string

	for _, object := range objects {
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
