// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// TestDriftOfReadFieldIsReverted changes a field by hand that a gate compares. The object has no status, and no event follows.
func TestDriftOfReadFieldIsReverted(t *testing.T) {
	t.Parallel()

	text := strings.Replace(configTask, "    lifecycle:\n", "    lifecycle:\n"+
		`      patch: [{when: {expression: 'resources.config.data.tier != cluster.spec.tier'}, `+
		`document: {data: {tier: "{{ .cluster.spec.tier }}"}}}]`+"\n", 1)
	w := newAdapterFixtureOf(t, text, env.Namespace(t), api)
	s := startAdapter(t, w.handle, w.looks)
	id := w.call(http.MethodPost, "/clusters", `{"name":"drift","spec":{"tier":"gold"}}`).Id

	s.sendEvent(id, 1)
	timing.WaitUntil(t, "the status is reported", func() bool { return w.getAvailable(id) == "True" })

	query := transport.Query{GVK: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Namespace: w.namespace, Name: id}

	timing.WaitUntil(t, "the watch has the object", func() bool {
		found, err := w.cluster.Find(t.Context(), query, transport.CacheOnly)

		return err == nil && len(found) == 1 && found[0].GetManagedFields() == nil
	})

	object := w.getConfigMap(id)
	object.Data["tier"] = "mine"

	must.Do(t, env.Client.Update(t.Context(), object))
	timing.WaitUntil(t, "the change is reverted", func() bool { return w.getConfigMap(id).Data["tier"] == "gold" })
}

// emptyClient is a client of a cluster without objects.
type emptyClient struct{ transport.Client }

func (emptyClient) Find(context.Context, transport.Query, transport.Read) ([]*unstructured.Unstructured, error) {
	return nil, nil
}

func (emptyClient) IsNamespaced(schema.GroupVersionKind) bool { return true }

// TestGatesOfAbsentObject checks that gates that the decision tree asks only about an existing object cost nothing before the
// object exists. It counts allocations, so it runs alone.
func TestGatesOfAbsentObject(t *testing.T) {
	const patches = 10

	measure := func(patch string) float64 {
		f := newFixture(t, strings.Replace(newSimpleTask("when: flag"), "    lifecycle:\n", "    lifecycle:\n"+patch, 1))
		in := f.newInput(event{generation: 1})
		in.Clients = map[string]transport.Client{transport.Kubernetes: emptyClient{}}

		return testing.AllocsPerRun(20, func() {
			result, err := resources.Run(t.Context(), in)
			must.Do(t, err)

			if got := formatOutcomes(result); got[0] != "none/WhenFalse" {
				t.Errorf("outcome %s", got[0])
			}
		})
	}

	without := measure("")
	with := measure("      patch:\n" + strings.Repeat(`      - {when: {expression: "resources.config.data.x == value"}, document: {a: b}}`+"\n", patches))

	if with-without > patches {
		t.Errorf("%.0f allocations, and %.0f without the patches", with, without)
	}
}
