// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport/kubernetes"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// requireNames compares the names of the ConfigMaps in the namespace.
func (f *fixture) requireNames(want ...string) {
	f.Helper()

	got := f.listNames("ConfigMap")
	slices.Sort(got)

	if diff := cmp.Diff(want, got); diff != "" && len(want)+len(got) > 0 {
		f.Fatalf("objects (-want +got):\n%s", diff)
	}
}

// newRenamedTask returns a task with a ConfigMap whose name depends on a field that can change.
func newRenamedTask(gates ...string) string {
	return newEntry("config", `"web-{{ .serial }}"`, append(gates, "delete: deleting")...)
}

// An object whose name has changed is deleted when the new one has the content of the manifest.
func TestRenamedObjectIsRemoved(t *testing.T) {
	t.Parallel()

	f, _ := newLoggingFixture(t, newRenamedTask("apply: !flag"))
	f.requireOutcomes(event{generation: 1, serial: "a"}, "create/Absent")

	// The gate that delays the new object delays the removal of the old one.
	f.requireOutcomes(event{generation: 2, serial: "b", flag: true}, "none/ApplyWhenFalse")
	f.requireNames("web-a")

	result := f.requireOutcomes(event{generation: 2, serial: "b"}, "create/Absent")
	f.requireNames("web-b")

	if diff := cmp.Diff([]string{"web-a"}, result.Outcomes[0].Pruned); diff != "" {
		t.Errorf("pruned: %s", diff)
	}

	// The names of generations that a gate has skipped are removed as well.
	f.requireOutcomes(event{generation: 3, serial: "c"}, "create/Absent")
	f.requireOutcomes(event{generation: 4, serial: "d", deleting: true}, "none/ObjectNotFound")
	f.requireNames()
}

// undeletable is a client whose deletions fail.
type undeletable struct{ transport.Client }

func (undeletable) Delete(context.Context, transport.Ref, metav1.DeletionPropagation) error {
	return errors.New("the API server is down")
}

// An object whose name has changed, and that has lost the label of the adapter, is also found by the event after the one that
// has created the new object, for example because the adapter was killed before the deletion.
func TestUnlabeledObjectIsRemovedLater(t *testing.T) {
	t.Parallel()

	f, _ := newLoggingFixture(t, newRenamedTask())
	f.task.Resources[0].NameCanChange = true // these tests have values of the resource in the event
	f.requireOutcomes(event{generation: 1, serial: "a"}, "create/Absent")
	f.patchByHand(f.newConfigMap("web-a"), `{"metadata":{"labels":{"hyperfleet.io/adapter":null}}}`)

	f.readLive = false
	f.clients = map[string]transport.Client{transport.Kubernetes: undeletable{staleReader{Client: clients[transport.Kubernetes]}}}
	f.requireOutcomes(event{generation: 2, serial: "b"}, "!create/NotRendered")
	f.requireNames("web-a", "web-b")

	f.clients, f.readLive = clients, true
	f.requireOutcomes(event{generation: 2, serial: "b"}, "none/GenerationUnchanged")
	f.requireNames("web-b")
}

// A stale event does not remove the object of a later name, and does not create that of the earlier one.
func TestStaleEventKeepsRenamedObject(t *testing.T) {
	t.Parallel()

	f, _ := newLoggingFixture(t, newRenamedTask())
	f.requireOutcomes(event{generation: 1, serial: "a"}, "create/Absent")
	f.requireOutcomes(event{generation: 2, serial: "b"}, "create/Absent")
	f.requireOutcomes(event{generation: 1, serial: "a"}, "none/Stale")
	f.requireNames("web-b")
}

// The gates for detach and delete apply to an object with an old name as well. Until it is gone, the deletion is not
// done.
func TestRenamedObjectAndDeletion(t *testing.T) {
	t.Parallel()

	f, _ := newLoggingFixture(t, newRenamedTask("detach: deleting && flag"))
	f.requireOutcomes(event{generation: 1, serial: "a"}, "create/Absent")
	f.patchByHand(f.newConfigMap("web-a"), `{"metadata":{"finalizers":["example.io/hold"]}}`)

	result := f.requireOutcomes(event{generation: 2, serial: "b", deleting: true}, "none/ObjectNotFound...")
	if result.Objects["config"] == nil {
		t.Error("a report takes the deletion for done")
	}

	f.requireOutcomes(event{generation: 2, serial: "b", deleting: true}, "none/ObjectNotFound...")
	f.patchByHand(f.newConfigMap("web-a"), `{"metadata":{"finalizers":null}}`)
	f.requireAbsent(f.requireOutcomes(event{generation: 2, serial: "b", deleting: true}, "none/ObjectNotFound"))
	f.requireNames()

	f.requireOutcomes(event{generation: 3, serial: "c"}, "create/Absent")
	f.requireAbsent(f.requireOutcomes(event{generation: 4, serial: "d", deleting: true, flag: true}, "none/ObjectNotFound"))
	f.requireNames("web-c")

	if labels := f.getObject(f.newConfigMap("web-c")).GetLabels(); len(labels) > 0 {
		t.Errorf("the object was not detached: labels %v", labels)
	}
}

// An object in another namespace, or of another kind, is no longer rendered either.
func TestMovedObjectIsRemoved(t *testing.T) {
	t.Parallel()

	kinded := strings.Replace(newSimpleTask(), "kind: ConfigMap", `kind: "{{ .serial }}"`, 1)

	f, _ := newLoggingFixture(t, strings.Replace(kinded, `      data: {value: "{{ .value }}"}`+"\n", "", 1))
	kinds := resources.NewKinds()

	run := func(e event) resources.Result {
		f.generation.Store(e.generation)

		in := f.newInput(e)
		in.Kinds = kinds

		result, err := resources.Run(t.Context(), in)
		must.Do(t, err)
		must.Do(t, result.Err())

		return result
	}

	run(event{generation: 1, serial: "ConfigMap"})
	run(event{generation: 2, serial: "Secret"})
	f.requireNames()

	other := env.Namespace(t)
	home := f.ns
	run(event{generation: 3, serial: "ConfigMap"})
	f.ns = other
	run(event{generation: 4, serial: "ConfigMap"})
	f.requireNames("web")

	f.ns = home
	f.requireNames()
}

// The objects of an entry that was removed from the task file are deleted, unless another entry has failed. An object
// of another resource or without a valid identity stays.
func TestRemovedEntry(t *testing.T) {
	t.Parallel()

	first, second := newEntry("first", "first", "delete: deleting"), newEntry("second", "second", "delete: deleting")

	f, _ := newLoggingFixture(t, first+second)
	f.requireOutcomes(event{generation: 1}, "create/Absent", "create/Absent")

	forged := f.newConfigMap("forged")
	forged.SetLabels(f.getObject(f.newConfigMap("second")).GetLabels())
	forged.SetAnnotations(f.getObject(f.newConfigMap("second")).GetAnnotations())
	must.Do(t, env.Client.Create(t.Context(), forged))

	f.task = loadTask(t, strings.Replace(first, "by_name: first", "by_name: other", 1))
	f.requireOutcomes(event{generation: 2}, "!none/ManifestInvalid")
	f.requireNames("first", "forged", "second")

	f.task = loadTask(t, first)
	f.patchByHand(f.newConfigMap("second"), `{"metadata":{"finalizers":["example.io/hold"]}}`)
	f.requireOutcomes(event{generation: 2}, "apply/GenerationChanged", "delete/NotRendered")

	// While the resource is being deleted, the object that remains keeps it.
	f.requireOutcomes(event{generation: 3, deleting: true}, "delete/DeleteGate", "!delete/NotRendered...")
	f.patchByHand(f.newConfigMap("second"), `{"metadata":{"finalizers":null}}`)
	f.requireOutcomes(event{generation: 3, deleting: true}, "none/ObjectNotFound")
	f.requireNames("forged")
}

// The kind of a removed entry is found on the cluster.
func TestKindOfRemovedEntry(t *testing.T) {
	t.Parallel()

	const name = "former"

	cluster, err := kubernetes.New(kubernetes.Options{Config: env.Config, Adapter: name})
	must.Do(t, err)

	secret := strings.NewReplacer("kind: ConfigMap", "kind: Secret", "data: {value", "stringData: {value").Replace(newEntry("second", "second"))

	f, _ := newLoggingFixture(t, newSimpleTask()+secret)
	f.stamper = stamp.New(name, newKeys(t, strings.Repeat("k", 32)))
	f.requireOutcomes(event{generation: 1}, "create/Absent", "create/Absent")

	kinds, err := cluster.ListOwnKinds(t.Context())
	must.Do(t, err)

	f.task = loadTask(t, newSimpleTask())

	in := f.newInput(event{generation: 2})
	in.Kinds = resources.NewKinds()
	f.generation.Store(2)

	for _, kind := range kinds {
		in.Kinds.Add(transport.Kubernetes, kind)
	}

	result, err := resources.Run(t.Context(), in)
	must.Do(t, err)

	if got := formatOutcomes(result); len(kinds) != 2 || len(got) != 2 || got[1] != "delete/NotRendered" {
		t.Errorf("kinds %v, outcomes %v", kinds, got)
	}
}

// lateClient is a client whose cache lacks objects when an entry discovers them, and has them afterward.
type lateClient struct {
	transport.Client

	early []*unstructured.Unstructured
}

func (c lateClient) Find(ctx context.Context, query transport.Query, read transport.Read) ([]*unstructured.Unstructured, error) {
	if read == transport.Cached {
		return c.early, nil
	}

	return c.Client.Find(ctx, query, transport.Live)
}

// A version that the cache gets between the discovery and the search for leftovers is not a leftover.
func TestLateCacheIsNoLeftover(t *testing.T) {
	t.Parallel()

	f, _ := newLoggingFixture(t, newRetentionTask("{historyLimit: 5}"))
	f.createVersions("a", "b")

	f.readLive = false
	f.clients = map[string]transport.Client{transport.Kubernetes: lateClient{
		clients[transport.Kubernetes], []*unstructured.Unstructured{f.getObject(f.newConfigMap("job-a"))},
	}}
	f.requireOutcomes(event{generation: 1, serial: "c"}, "none/GenerationUnchanged")
	f.requireNames("job-a", "job-b")

	f.requireOutcomes(event{generation: 2, serial: "c"}, "create/GenerationChanged")
	f.requireNames("job-a", "job-b", "job-c")
}

// TestObjectsAreIndexedByResource checks that the time to find the objects of a resource does not grow with the number of
// other resources: a scan of the cache copies the labels of each object. It counts allocations, so it runs alone.
func TestObjectsAreIndexedByResource(t *testing.T) {
	const others = 200

	f := newFixture(t, "  []")

	for i := range others + 1 {
		object, id := f.newConfigMap(fmt.Sprintf("object-%d", i)), f.id
		if i < others {
			id = fmt.Sprintf("%s-%d", f.id, i)
		}

		object.SetLabels(map[string]string{adapter.LabelAdapter: adapterName, adapter.LabelResourceID: id})
		must.Do(t, env.Client.Create(t.Context(), object))
	}

	f.waitForCache(1)

	query := transport.Query{GVK: f.newConfigMap("").GroupVersionKind(), Labels: map[string]string{
		adapter.LabelAdapter: adapterName, adapter.LabelResourceID: f.id,
	}}

	if allocations := testing.AllocsPerRun(20, func() {
		found, err := clients[transport.Kubernetes].Find(t.Context(), query, transport.Indexed)
		if err != nil || len(found) != 1 || found[0].GetName() != fmt.Sprintf("object-%d", others) {
			t.Errorf("%v, %v", found, err)
		}
	}); allocations > others {
		t.Errorf("%.0f allocations with %d other objects", allocations, others)
	}
}
