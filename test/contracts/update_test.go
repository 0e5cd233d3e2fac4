// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// update is a change of an existing object. If want is empty, the API server accepts the change.
type update struct {
	why    string
	base   string
	change change
	want   string
}

// listUpdates has at least one row for each rule about updates.
func listUpdates() []update {
	const (
		fixed    = "a MachineClaim cannot be changed: delete it and create a new one"
		identity = "platform and id of a RunnerJob cannot be changed"
		started  = "standby cannot be changed to true, because the machine may have started: create a new MachineClaim with standby"
		backward = "the state of a RunnerJob can only change forward"
	)

	return append(slices.Concat(listKubevirtUpdates(), listBridgeUpdates(), listHostUpdates(), listMacUpdates()), []update{
		{"claim with another template", baseClaim, change{"spec.templateRef.name": "other"}, fixed},
		{"claim with another pool", baseClaim, change{"spec.runnerPoolRef": anyMap{"name": "other"}}, fixed},
		{"claim with another life", baseClaim, change{"spec.lifecycle": anyMap{"maxLifetime": "1h"}}, fixed},
		{"claim with a time more", baseClaim, change{"spec.lifecycle.jobTimeout": "1h"}, fixed},
		{"claim with a time less", baseClaim, change{"spec.lifecycle": anyMap{"bootstrapTimeout": "1m"}}, fixed},
		{"claim with the same duration in another unit", baseClaim, change{"spec.lifecycle.bootstrapTimeout": "900s"}, ""},
		{"claim with another placement", baseClaim, change{"spec.placement": "Pack"}, fixed},
		{"claim put on standby", baseClaim, change{"spec.standby": true}, started},
		{"claim on standby is to start", baseStandby, change{"spec.standby": false}, ""},
		{"claim with a label", baseClaim, change{"metadata.labels": anyMap{"a": "b"}}, ""},
		{"claim with a finalizer", baseClaim, change{"metadata.finalizers": list{"hyperfleet.io/vm-cleanup"}}, ""},
		{"job becomes another", baseJob, change{"spec.id": "2"}, identity},
		{"job changes its platform", baseJob, change{"spec.platform": "gitlab-ci"}, identity},
		{"job goes back", baseJob, change{"spec.state": "Waiting"}, backward},
		{"job goes on", baseJob, change{"spec.state": "Running", "spec.runnerName": "r1"}, ""},
		{"job skips a state", baseJob, change{"spec.state": "Completed", "spec.conclusion": "cancelled"}, ""},
		{"job with a name", baseJob, change{"spec.name": "build"}, ""},
		{
			"batch is changed", baseBatch, change{"spec.jobs": list{anyMap{"platform": "generic", "id": "2", "state": "Queued"}}},
			"a RunnerJobBatch cannot be changed",
		},
		{"registration of another machine", baseRegistration, change{"spec.claim.uid": "other"}, "its old records would stay in DNS"},
		{"registration of another kind of machine", baseRegistration, change{"spec.claim.kind": "KubevirtMachine"}, "its old records would stay in DNS"},
		{"registration at another cluster", baseRegistration, change{"spec.hypervisorCluster": "other"}, "its old records would stay in DNS"},
		{"machine with another address", baseRegistration, change{"spec.addresses": list{"192.0.2.18", "2001:db8::18"}}, ""},
		{"pool is resized", basePool, change{"spec.scaling": anyMap{"maxReplicas": int64(3)}}, ""},
		{"template grows", baseTemplate, change{"spec.resources.cpu": int64(8)}, ""},
	}...)
}

func TestUpdates(t *testing.T) {
	t.Parallel()

	for _, row := range listUpdates() {
		t.Run(row.why, func(t *testing.T) {
			t.Parallel()

			namespace := env.Namespace(t)

			object := parseObject(t, row.base)
			object.SetNamespace(namespace)
			object.SetName(namespace) // cluster-scoped objects of the rows need different names

			if err := newStrictClient().Create(t.Context(), object); err != nil {
				t.Fatal(err)
			}

			changed := edit(t, object, row.change)

			switch err := newStrictClient().Update(t.Context(), changed); {
			case row.want == "" && err != nil:
				t.Errorf("want the update to be accepted, got: %v", err)
			case row.want != "" && !apierrors.IsInvalid(err):
				t.Errorf("want the update to be invalid, got: %v", err)
			case row.want != "" && !strings.Contains(err.Error(), row.want):
				t.Errorf("want %q in:\n%v", row.want, err)
			}
		})
	}
}

// edit returns a copy of the object with the change.
func edit(t testing.TB, object *unstructured.Unstructured, change change) *unstructured.Unstructured {
	t.Helper()

	changed := object.DeepCopy()

	for path, value := range change {
		if _, gone := value.(removed); gone {
			unstructured.RemoveNestedField(changed.Object, strings.Split(path, ".")...)

			continue
		}

		if err := unstructured.SetNestedField(changed.Object, value, strings.Split(path, ".")...); err != nil {
			t.Fatalf("set %s: %v", path, err)
		}
	}

	return changed
}
