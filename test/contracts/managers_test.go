// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What there is one of for each job is written many times, and the API server keeps no list of
// its fields by who wrote which: that would be half of the object (ADR 0063).
func TestObjectsOfJobsKeepNoListOfFields(t *testing.T) {
	t.Parallel()

	statuses := map[string]anyMap{
		baseClaim: {
			"phase": "Ready", "vmRef": anyMap{"hypervisorCluster": "c", "node": "pve1", "vmId": "100"},
			"conditions": list{condition("Ready"), condition("Placed")},
		},
		baseJob: {"conditions": list{condition("Ready"), condition("Claimed")}},
	}

	for text, status := range statuses {
		object := parse(t, text)
		object.SetNamespace(env.Namespace(t))

		if err := strict().Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}

		changed := edit(t, object, change{"status": status})
		if err := strict().Status().Patch(t.Context(), changed, client.MergeFrom(object)); err != nil {
			t.Fatal(err)
		}

		if diff := cmp.Diff(map[string][]string{"": {"f:spec"}, "status": {"f:status"}}, listed(t, changed)); diff != "" {
			t.Errorf("fields of the %s by who wrote them, -want +got:\n%s", object.GetKind(), diff)
		}
	}
}

// listed are the fields outside metadata that are known as somebody's, by subresource: those
// that have nothing below them.
func listed(t *testing.T, object *unstructured.Unstructured) map[string][]string {
	t.Helper()

	out := map[string][]string{}

	for _, one := range object.GetManagedFields() {
		var fields map[string]anyMap
		if err := json.Unmarshal(one.FieldsV1.GetRawBytes(), &fields); err != nil {
			t.Fatal(err)
		}

		delete(fields, "f:metadata")

		for name, below := range fields {
			if len(below) > 0 {
				t.Errorf("%s has a list below it: %v", name, slices.Sorted(maps.Keys(below)))
			}

			out[one.Subresource] = append(out[one.Subresource], name)
		}
	}

	return out
}

func condition(name string) anyMap {
	return anyMap{"type": name, "status": "True", "reason": "Done", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"}
}
