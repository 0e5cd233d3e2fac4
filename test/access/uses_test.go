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

// usesFile has what accounts do, by the program whose tests see them do it. Each of these
// programs fails when one of its rows is not seen, or something is that is in no row
// (kube.WithUses).
const usesFile = "testdata/uses.yaml"

// granted are the rights of an area's account, but for those to read Secrets of namespaces
// that users choose.
func granted(t *testing.T, area string) []string {
	t.Helper()

	objects, err := kubeproc.ReadObjects("../../deploy/rbac/" + area + ".yaml")
	if err != nil {
		t.Fatal(err)
	}

	var out []string

	for _, object := range objects {
		for _, rule := range as[rbacv1.ClusterRole](t, object).Rules {
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

// No account of an area has a right that nothing uses, or uses one that it has not.
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

		rights := granted(t, area)

		for _, right := range rights {
			if !slices.Contains(used, right) {
				t.Errorf("hyperfleet-%s may %q, and nothing does: take the right away, or add a row to %s", area, right, usesFile)
			}
		}

		for _, use := range used {
			// Hosts' keys are in namespaces that users choose (deploy/namespace-secrets).
			if !slices.Contains(rights, use) && (area != "hosts" || use != "get secrets") {
				t.Errorf("hyperfleet-%s does %q, and may not", area, use)
			}
		}
	}
}
