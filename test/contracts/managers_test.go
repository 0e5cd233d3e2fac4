// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Objects of which each job has one are written often. If one client writes all fields of an object, the API
// server keeps no managed fields, which would be half of the object (ADR 0063). A claim's conditions have two
// writers, runners and networking.
func TestObjectsOfJobsHaveFewManagedFields(t *testing.T) {
	t.Parallel()

	times := anyMap{"placed": "2026-01-02T03:04:05.000000Z", "started": "2026-01-02T03:04:05.000000Z"}

	for text, tc := range map[string]struct {
		status anyMap
		want   map[string]anyMap
	}{
		baseClaim: {
			status: anyMap{
				"phase": "Ready", "vmRef": anyMap{"hypervisorCluster": "c", "node": "pve1", "vmId": "100"},
				"bootstrapInfo": anyMap{"runnerName": "r", "runnerId": "1"}, "times": times,
			},
			want: map[string]anyMap{"": {"f:spec": anyMap{}}, "status": {"f:status": anyMap{
				".": anyMap{}, "f:phase": anyMap{}, "f:vmRef": anyMap{}, "f:bootstrapInfo": anyMap{}, "f:times": anyMap{},
			}}},
		},
		baseJob: {
			status: anyMap{"conditions": list{anyMap{
				"type": "Ready", "status": "True", "reason": "Done", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z",
			}}},
			want: map[string]anyMap{"": {"f:spec": anyMap{}}, "status": {"f:status": anyMap{}}},
		},
	} {
		object := parseObject(t, text)
		object.SetNamespace(env.Namespace(t))

		if err := newStrictClient().Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}

		changed := edit(t, object, change{"status": tc.status})
		if err := newStrictClient().Status().Patch(t.Context(), changed, client.MergeFrom(object)); err != nil {
			t.Fatal(err)
		}

		if diff := cmp.Diff(tc.want, listManagedFields(t, changed)); diff != "" {
			t.Errorf("managed fields of the %s (-want +got):\n%s", object.GetKind(), diff)
		}
	}
}

// listManagedFields returns the managed fields outside metadata, by subresource.
func listManagedFields(t *testing.T, object *unstructured.Unstructured) map[string]anyMap {
	t.Helper()

	out := map[string]anyMap{}

	for _, one := range object.GetManagedFields() {
		var fields anyMap
		if err := json.Unmarshal(one.FieldsV1.GetRawBytes(), &fields); err != nil {
			t.Fatal(err)
		}

		delete(fields, "f:metadata")
		out[one.Subresource] = fields
	}

	return out
}
