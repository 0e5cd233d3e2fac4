// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

func newRecreateTask() string {
	return newEntry("config", "web", "recreate: resources.?config.hasValue() && flag") + newEntry("sibling", "sibling")
}

func TestRecreate(t *testing.T) {
	t.Parallel()

	f := newFixture(t, newRecreateTask())
	f.requireOutcomes(event{generation: 1, value: "a"}, "create/Absent", "create/Absent")

	first := f.getObject(f.newConfigMap("web"))
	f.requireOutcomes(event{generation: 1, value: "b", flag: true}, "recreate/RecreateGate", "apply/ContentChanged")

	second := f.getObject(f.newConfigMap("web"))
	if second.GetUID() == first.GetUID() || f.getData("web")["value"] != "b" {
		t.Errorf("the object was not recreated: %v", f.getData("web"))
	}

	// A finalizer delays the deletion. The event does not wait, and the next event continues.
	f.patchByHand(second, `{"metadata":{"finalizers":["example.io/hold"]}}`)

	f.requireOutcomes(event{generation: 2, value: "c", flag: true}, "recreate/RecreateGate...", "apply/GenerationChanged")
	f.requireOutcomes(event{generation: 2, value: "c", flag: true}, "none/DeletionPending...", "none/GenerationUnchanged")

	f.patchByHand(second, `{"metadata":{"finalizers":null}}`)
	f.requireOutcomes(event{generation: 2, value: "c"}, "create/Absent", "none/GenerationUnchanged")
}

// If the object cannot be recreated, it is not deleted.
func TestRecreateRendersFirst(t *testing.T) {
	t.Parallel()

	f := newFixture(t, strings.Replace(newRecreateTask(), "metadata: {name: web,", `metadata: {annotations: {hyperfleet.io/generation: "{{ .serial }}"}, name: web,`, 1))
	f.requireOutcomes(event{generation: 1, serial: "1"}, "create/Absent", "create/Absent")
	f.requireOutcomes(event{generation: 2, serial: "no number", flag: true}, "!recreate/ManifestInvalid", "none/EarlierFailed")

	if f.getObject(f.newConfigMap("web")) == nil {
		t.Error("the object was deleted")
	}
}

const retained = `
  - name: job
    discovery:
      namespace: "{{ .ns }}"
      by_selectors: {label_selector: {hyperfleet.io/resource-id: "{{ .id }}"}}
    manifest:
      apiVersion: v1
      kind: ConfigMap
      metadata: {name: "job-{{ .serial }}", namespace: "{{ .ns }}"}
      data: {value: "{{ .value }}"}
    retention: RETENTION
    lifecycle:
      recreate: {when: {expression: flag}}
      detach: {when: {expression: deleting && value == 'detach'}}
      delete: {when: {expression: deleting}}
`

// createVersions creates a version for each serial, the first with an event and the others by recreation.
func (f *fixture) createVersions(serials ...string) {
	f.Helper()
	f.requireOutcomes(event{generation: 1, serial: serials[0]}, "create/Absent")

	for _, serial := range serials[1:] {
		f.requireOutcomes(event{generation: 1, serial: serial, flag: true}, "recreate/RecreateGate")
	}
}

// waitForCache waits until cached reads return all n versions. An event that writes nothing relies on them.
func (f *fixture) waitForCache(n int) {
	f.Helper()
	timing.WaitUntil(f, "the cache has all versions", func() bool {
		found, err := clients[transport.Kubernetes].Find(f.Context(), transport.Query{
			GVK: f.newConfigMap("").GroupVersionKind(), Namespace: f.ns, Labels: map[string]string{adapter.LabelResourceID: f.id},
		}, transport.Cached)

		// Live reads have managed fields.
		return err == nil && len(found) == n && found[0].GetManagedFields() == nil
	})
}

func newRetentionTask(retention string) string {
	return strings.Replace(retained, "RETENTION", retention, 1)
}

func TestRetention(t *testing.T) {
	t.Parallel()

	f := newFixture(t, newRetentionTask("{historyLimit: 2}"))

	f.requireOutcomes(event{generation: 1, serial: "a"}, "create/Absent")
	f.requireOutcomes(event{generation: 1, serial: "b"}, "none/GenerationUnchanged")
	f.requireOutcomes(event{generation: 1, serial: "b", flag: true}, "recreate/RecreateGate")

	// A later generation creates another version, and earlier ones stay.
	result := f.requireOutcomes(event{generation: 2, serial: "c"}, "create/GenerationChanged")
	if got := result.Outcomes[0].Object; !strings.HasSuffix(got, "/job-c") {
		t.Errorf("the current object is %s", got)
	}

	result = f.requireOutcomes(event{generation: 2, serial: "d", flag: true}, "recreate/RecreateGate")
	if diff := cmp.Diff([]string{"job-a"}, result.Outcomes[0].Pruned); diff != "" {
		t.Errorf("pruned: %s", diff)
	}

	if diff := cmp.Diff([]string{"job-b", "job-c", "job-d"}, f.listNames("ConfigMap")); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}

	// If the name does not change, a new version cannot be created.
	f.requireOutcomes(event{generation: 2, serial: "d", flag: true}, "!recreate/ManifestInvalid")

	// A deletion deletes all versions.
	f.requireOutcomes(event{generation: 3, serial: "e", deleting: true}, "delete/DeleteGate")

	if got := f.listNames("ConfigMap"); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

// Entries with a retention, the same kind and the same selector each have their own versions.
func TestVersionsOfSiblings(t *testing.T) {
	t.Parallel()

	one := newRetentionTask("{historyLimit: 0}")
	f := newFixture(t, one+strings.ReplaceAll(one, "job", "other"))

	f.requireOutcomes(event{generation: 1, serial: "a"}, "create/Absent", "create/Absent")
	f.requireOutcomes(event{generation: 1, serial: "b", flag: true}, "recreate/RecreateGate", "recreate/RecreateGate")

	if diff := cmp.Diff([]string{"job-b", "other-b"}, f.listNames("ConfigMap")); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}

// The current version is that of the event's generation, even if another one is newer, as after a restore of the database.
// Without such a version, it is the newest one.
func TestCurrentVersion(t *testing.T) {
	t.Parallel()

	requireCurrent := func(result resources.Result, want string) {
		t.Helper()

		object, _ := result.Objects["job"].(map[string]any)
		if got, _, _ := unstructured.NestedString(object, "metadata", "name"); got != want {
			t.Errorf("the current version is %q, want %s", got, want)
		}
	}

	f := newFixture(t, newRetentionTask("{historyLimit: 5}"))
	f.requireOutcomes(event{generation: 1, serial: "a"}, "create/Absent")
	f.requireOutcomes(event{generation: 2, serial: "b"}, "create/GenerationChanged")
	f.waitForCache(2)

	f.restore(1)
	requireCurrent(f.requireOutcomes(event{generation: 1, serial: "a"}, "none/GenerationUnchanged"), "job-a")

	f.task = loadTask(t, newRetentionTask("{historyLimit: 5}\n    when: {expression: flag}"))
	requireCurrent(f.requireOutcomes(event{generation: 3, serial: "c"}, "none/WhenFalse"), "job-b")
}

// A late event sees the later version, and does not count its own version as the current one.
func TestStaleEventsDoNotPrune(t *testing.T) {
	t.Parallel()

	f := newFixture(t, newRetentionTask("{historyLimit: 1}"))
	f.requireOutcomes(event{generation: 1, serial: "a"}, "create/Absent")
	f.requireOutcomes(event{generation: 2, serial: "b"}, "create/GenerationChanged")

	f.task = loadTask(t, newRetentionTask("{historyLimit: 0}"))
	f.waitForCache(2)
	f.requireOutcomes(event{generation: 1, serial: "c"}, "none/Stale")

	if diff := cmp.Diff([]string{"job-a", "job-b"}, f.listNames("ConfigMap")); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}

	f.requireOutcomes(event{generation: 2, serial: "d"}, "none/GenerationUnchanged")

	if diff := cmp.Diff([]string{"job-b"}, f.listNames("ConfigMap")); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}

// Earlier versions are also deleted by age and by expression, even by events that change nothing. The
// current version stays.
func TestRetentionRules(t *testing.T) {
	t.Parallel()

	for name, retention := range map[string]string{
		"age":        "{ttl: 1h}",
		"expression": "{expression: \"itemIndex >= 0 && item.metadata.name in items.map(i, i.metadata.name) && serial == 'prune'\"}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t, newRetentionTask(retention))
			f.createVersions("a", "b")

			if diff := cmp.Diff([]string{"job-a", "job-b"}, f.listNames("ConfigMap")); diff != "" {
				t.Fatalf("objects before the rule applies (-want +got):\n%s", diff)
			}

			f.clock = testingclock.NewFakePassiveClock(time.Now().Add(2 * time.Hour))

			timing.WaitUntil(t, "the old version is deleted", func() bool {
				f.requireOutcomes(event{generation: 1, serial: "prune"}, "none/GenerationUnchanged")

				return slices.Equal(f.listNames("ConfigMap"), []string{"job-b"})
			})
		})
	}
}

// Each rule of a retention applies by itself, also if there is another one.
func TestRetentionRulesTogether(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		retention string
		want      []string
	}{
		"the history limit, within the ttl": {"{ttl: 100h, historyLimit: 1}", []string{"job-b", "job-c"}},
		"the ttl, within the history limit": {"{ttl: 1h, historyLimit: 5}", []string{"job-c"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t, newRetentionTask(tc.retention))
			f.createVersions("a", "b", "c")
			f.clock = testingclock.NewFakePassiveClock(time.Now().Add(2 * time.Hour))

			timing.WaitUntil(t, "the old versions are deleted", func() bool {
				f.requireOutcomes(event{generation: 1, serial: "prune"}, "none/GenerationUnchanged")

				return slices.Equal(f.listNames("ConfigMap"), tc.want)
			})
		})
	}
}

// Versions that are being deleted do not count against the history limit.
func TestVersionsBeingDeletedDoNotCount(t *testing.T) {
	t.Parallel()

	f := newFixture(t, newRetentionTask("{historyLimit: 5}"))
	f.createVersions("a", "b", "c", "d")
	f.patchByHand(f.newConfigMap("job-c"), `{"metadata":{"finalizers":["example.com/slow"]}}`)

	must.Do(t, env.Client.Delete(t.Context(), f.newConfigMap("job-c")))

	f.task = loadTask(t, newRetentionTask("{historyLimit: 2}"))
	f.readLive = true

	result := f.requireOutcomes(event{generation: 1, serial: "e"}, "none/GenerationUnchanged")
	if pruned := result.Outcomes[0].Pruned; len(pruned) > 0 {
		t.Errorf("pruned: %v", pruned)
	}

	if diff := cmp.Diff([]string{"job-a", "job-b", "job-c", "job-d"}, f.listNames("ConfigMap")); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}

	f.patchByHand(f.newConfigMap("job-c"), `{"metadata":{"finalizers":null}}`)
}

// deletingClient is a client whose objects are deleted while they are written.
type deletingClient struct{ transport.Client }

func (c deletingClient) Apply(ctx context.Context, live, object *unstructured.Unstructured) (*unstructured.Unstructured, string, error) {
	applied, takenOver, err := c.Client.Apply(ctx, live, object)
	if applied != nil {
		now := metav1.Now()
		applied.SetDeletionTimestamp(&now)
	}

	return applied, takenOver, err
}

// While the current version is being deleted, earlier versions stay.
func TestDeletedVersionKeepsEarlierVersions(t *testing.T) {
	t.Parallel()

	f := newFixture(t, newRetentionTask("{historyLimit: 5}"))
	f.readLive = true
	f.createVersions("a", "b")

	f.task = loadTask(t, newRetentionTask("{historyLimit: 0}"))
	f.clients = map[string]transport.Client{transport.Kubernetes: deletingClient{clients[transport.Kubernetes]}}

	result := f.requireOutcomes(event{generation: 2, serial: "b"}, "apply/GenerationChanged")
	if pruned := result.Outcomes[0].Pruned; len(pruned) > 0 {
		t.Errorf("pruned: %v", pruned)
	}
}

// An event that is older than the last handled one prunes nothing.
func TestOvertakenEventsDoNotPrune(t *testing.T) {
	t.Parallel()

	f := newFixture(t, newRetentionTask("{historyLimit: 5}"))
	f.seen = resources.NewGenerations()
	f.createVersions("a", "b")

	f.task = loadTask(t, "  []")
	f.requireOutcomes(event{generation: 2})

	f.task = loadTask(t, newRetentionTask("{historyLimit: 0}"))
	f.readLive = true
	f.requireOutcomes(event{generation: 1, serial: "c"}, "none/Stale")

	if diff := cmp.Diff([]string{"job-a", "job-b"}, f.listNames("ConfigMap")); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}

func TestRetentionErrors(t *testing.T) {
	t.Parallel()

	f := newFixture(t, newRetentionTask(`{expression: "item.status.phase == 'Done'"}`))
	f.requireOutcomes(event{generation: 1, serial: "a"}, "create/Absent")
	f.requireOutcomes(event{generation: 1, serial: "b", flag: true}, "!recreate/GateFailed")

	if diff := cmp.Diff([]string{"job-a", "job-b"}, f.listNames("ConfigMap")); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}

// A detachment detaches all versions, and redelivery creates no new one.
func TestDetachVersions(t *testing.T) {
	t.Parallel()

	f := newFixture(t, newRetentionTask("{historyLimit: 5}"))
	f.createVersions("a", "b")
	f.requireOutcomes(event{generation: 2, serial: "c", deleting: true, value: "detach"}, "detach/DetachGate")

	for _, name := range []string{"job-a", "job-b"} {
		if got := f.getObject(f.newConfigMap(name)); len(got.GetLabels()) != 0 {
			t.Errorf("%s has labels %v", name, got.GetLabels())
		}
	}

	f.requireOutcomes(event{generation: 2, serial: "d", deleting: true, value: "detach"}, "none/Detached")

	if diff := cmp.Diff([]string{"job-a", "job-b"}, f.listNames("ConfigMap")); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}

func newOwnerTask() string {
	return newEntry("owner", "owner", "apply: !flag", "delete: deleting") + newEntry("owned", "owned", "apply: !deleting") +
		"    owner: {resource: owner}\n"
}

// An owner exists, and is in the same namespace or cluster-scoped. Kubernetes' garbage collector deletes
// owned objects.
func TestOwner(t *testing.T) {
	t.Parallel()

	f := newFixture(t, newOwnerTask())
	f.requireOutcomes(event{generation: 1, flag: true}, "none/ApplyWhenFalse", "!none/OwnerMissing")
	f.requireOutcomes(event{generation: 1}, "create/Absent", "create/Absent")

	requireOwner := func() {
		t.Helper()

		want := []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: f.getObject(f.newConfigMap("owner")).GetUID()}}
		if diff := cmp.Diff(want, f.getObject(f.newConfigMap("owned")).GetOwnerReferences()); diff != "" {
			t.Errorf("owners: %s", diff)
		}
	}
	requireOwner()
	f.requireOutcomes(event{generation: 2}, "apply/GenerationChanged", "apply/GenerationChanged")
	requireOwner()
	f.requireOutcomes(event{generation: 3, deleting: true}, "delete/DeleteGate", "none/ApplyWhenFalse")
}

func TestOwnerInAnotherNamespace(t *testing.T) {
	t.Parallel()

	first, second, _ := strings.Cut(newOwnerTask(), "  - name: owned")
	f := newFixture(t, first+"  - name: owned"+strings.ReplaceAll(second, "{{ .ns }}", "{{ .value }}"))

	result := f.requireOutcomes(event{generation: 1, value: env.Namespace(t)}, "create/Absent", "!none/ManifestInvalid")
	if err := result.Err(); !strings.Contains(err.Error(), "an owner must be in the same namespace or cluster-scoped") {
		t.Errorf("error: %v", err)
	}
}

// A namespace owns the objects in it. Its deletion takes time, and events continue to be handled.
func TestNamespaceAsOwner(t *testing.T) {
	t.Parallel()

	space := strings.NewReplacer("ConfigMap", "Namespace", `, namespace: "{{ .ns }}"`, "", `namespace: "{{ .ns }}", `, "",
		`      data: {value: "{{ .value }}"}`+"\n", "").Replace(newEntry("space", `"{{ .ns }}-inner"`, "delete: deleting"))
	inside := strings.ReplaceAll(newEntry("inside", "web", "apply: !deleting"), `"{{ .ns }}"`, `"{{ .ns }}-inner"`)
	f := newFixture(t, space+inside+"    owner: {resource: space}\n")

	f.requireOutcomes(event{generation: 1}, "create/Absent", "create/Absent")

	owned := f.newConfigMap("web")
	owned.SetNamespace(f.ns + "-inner")

	want := []metav1.OwnerReference{{
		APIVersion: "v1", Kind: "Namespace", Name: f.ns + "-inner", UID: f.getObject(f.newObject("v1", "Namespace", f.ns+"-inner")).GetUID(),
	}}
	if diff := cmp.Diff(want, f.getObject(owned).GetOwnerReferences()); diff != "" {
		t.Errorf("owners: %s", diff)
	}

	f.requireOutcomes(event{generation: 2, deleting: true}, "delete/DeleteGate...", "none/ApplyWhenFalse")
	f.requireOutcomes(event{generation: 2, deleting: true}, "delete/DeleteGate...", "none/ApplyWhenFalse")
}

// inNamespace is a task with a namespace, two objects in it, and a cluster-scoped object whose discovery
// names the namespace.
const inNamespace = `
  - name: space
    discovery: {by_name: "{{ .ns }}-new"}
    manifest:
      apiVersion: v1
      kind: Namespace
      metadata: {name: "{{ .ns }}-new"}
  - name: named
    discovery: {namespace: "{{ .ns }}-new", by_name: named}
    manifest:
      apiVersion: v1
      kind: ConfigMap
      metadata: {name: named, namespace: "{{ .ns }}-new"}
      data: {value: "{{ .value }}"}
  - name: labelled
    discovery: {namespace: "{{ .ns }}-new", by_selectors: {label_selector: {app: labelled}}}
    manifest:
      apiVersion: v1
      kind: ConfigMap
      metadata: {name: labelled, namespace: "{{ .ns }}-new", labels: {app: labelled}}
  - name: anywhere
    discovery: {namespace: "{{ .ns }}-new", by_name: "{{ .ns }}-anywhere"}
    manifest:
      apiVersion: scheduling.k8s.io/v1
      kind: PriorityClass
      metadata: {name: "{{ .ns }}-anywhere"}
      value: 1
`

// recordingClient is a client that records reads, and lets the test create an object concurrently.
type recordingClient struct {
	transport.Client

	reads []string
	// If meanwhile is not nil, it runs once after the first create.
	meanwhile func()
}

func newRecordingClient() *recordingClient {
	return &recordingClient{Client: clients[transport.Kubernetes]}
}

func (s *recordingClient) Find(ctx context.Context, query transport.Query, read transport.Read) ([]*unstructured.Unstructured, error) {
	verb := "list "
	if query.Name != "" {
		verb = "get "
	}

	// Indexed reads come from the cache.
	if read != transport.Indexed {
		s.reads = append(s.reads, verb+query.GVK.Kind)
	}

	return s.Client.Find(ctx, query, read)
}

func (s *recordingClient) Create(ctx context.Context, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	made, err := s.Client.Create(ctx, o)

	if meanwhile := s.meanwhile; meanwhile != nil {
		s.meanwhile = nil

		meanwhile()
	}

	return made, err
}

func (s *recordingClient) requireReads(t *testing.T, want ...string) {
	t.Helper()

	if !slices.Equal(s.reads, want) {
		t.Errorf("reads: %v, want %v", s.reads, want)
	}

	s.reads = nil
}

// Objects in a missing namespace are not read. After the namespace was created, they are.
func TestNoReadsInAMissingNamespace(t *testing.T) {
	t.Parallel()

	f, s := newFixture(t, inNamespace), newRecordingClient()
	f.clients = map[string]transport.Client{transport.Kubernetes: s}

	f.requireOutcomes(event{generation: 1, value: "a"}, "create/Absent", "create/Absent", "create/Absent", "create/Absent")
	s.requireReads(t, "get Namespace", "get PriorityClass")

	f.requireOutcomes(event{generation: 1, value: "a"}, "none/GenerationUnchanged", "none/GenerationUnchanged",
		"none/GenerationUnchanged", "none/GenerationUnchanged")
	s.requireReads(t, "get Namespace", "get ConfigMap", "list ConfigMap", "get PriorityClass")
}

// An object that others create in a new namespace is found and left alone.
func TestConcurrentlyCreatedObjectIsLeftAlone(t *testing.T) {
	t.Parallel()

	f, s := newFixture(t, inNamespace), newRecordingClient()
	f.clients = map[string]transport.Client{transport.Kubernetes: s}
	s.meanwhile = func() {
		theirs := f.newObject("v1", "ConfigMap", "named")
		theirs.SetNamespace(f.ns + "-new")

		if err := env.Client.Create(t.Context(), theirs); err != nil {
			t.Error(err)
		}
	}

	f.requireOutcomes(event{generation: 1, value: "a"}, "create/Absent", "!create/NotManaged", "none/EarlierFailed", "none/EarlierFailed")
}
