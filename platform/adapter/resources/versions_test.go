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
)

func recreated() string {
	return entry("config", "web", "recreate: resources.?config.hasValue() && flag") + entry("sibling", "sibling")
}

func TestRecreate(t *testing.T) {
	t.Parallel()

	f := newFleet(t, recreated())
	f.want(event{generation: 1, value: "a"}, "create/Absent", "create/Absent")

	first := f.get(f.configMap("web"))
	f.want(event{generation: 1, value: "b", flag: true}, "recreate/RecreateGate", "none/GenerationUnchanged")

	second := f.get(f.configMap("web"))
	if second.GetUID() == first.GetUID() || f.data("web")["value"] != "b" {
		t.Errorf("it is the same: %v", f.data("web"))
	}

	// Something holds on to it: the event does not wait, the next goes on.
	f.edit(second, `{"metadata":{"finalizers":["example.io/hold"]}}`)

	f.want(event{generation: 2, value: "c", flag: true}, "recreate/RecreateGate...", "apply/GenerationChanged")
	f.want(event{generation: 2, value: "c", flag: true}, "none/DeletionPending...", "none/GenerationUnchanged")

	f.edit(second, `{"metadata":{"finalizers":null}}`)
	f.want(event{generation: 2, value: "c"}, "create/Absent", "none/GenerationUnchanged")
}

// Nothing is removed that can't be made again.
func TestRecreateRendersFirst(t *testing.T) {
	t.Parallel()

	f := newFleet(t, strings.Replace(recreated(), "metadata: {name: web,", `metadata: {annotations: {hyperfleet.io/generation: "{{ .serial }}"}, name: web,`, 1))
	f.want(event{generation: 1, serial: "1"}, "create/Absent", "create/Absent")
	f.want(event{generation: 2, serial: "no number", flag: true}, "!recreate/ManifestInvalid", "none/EarlierFailed")

	if f.get(f.configMap("web")) == nil {
		t.Error("it was removed")
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

// versions makes a version for each serial, the first by an event and the others by recreation.
func (f *fleet) versions(serials ...string) {
	f.Helper()
	f.want(event{generation: 1, serial: serials[0]}, "create/Absent")

	for _, serial := range serials[1:] {
		f.want(event{generation: 1, serial: serial, flag: true}, "recreate/RecreateGate")
	}
}

func retain(retention string) string { return strings.Replace(retained, "RETENTION", retention, 1) }

func TestRetention(t *testing.T) {
	t.Parallel()

	f := newFleet(t, retain("{historyLimit: 2}"))

	f.want(event{generation: 1, serial: "a"}, "create/Absent")
	f.want(event{generation: 1, serial: "b"}, "none/GenerationUnchanged")
	f.want(event{generation: 1, serial: "b", flag: true}, "recreate/RecreateGate")

	// A later generation makes another version, beside the ones before.
	result := f.want(event{generation: 2, serial: "c"}, "create/GenerationChanged")
	if got := result.Outcomes[0].Object; !strings.HasSuffix(got, "/job-c") {
		t.Errorf("the current object is %s", got)
	}

	result = f.want(event{generation: 2, serial: "d", flag: true}, "recreate/RecreateGate")
	if diff := cmp.Diff([]string{"job-a"}, result.Outcomes[0].Pruned); diff != "" {
		t.Errorf("pruned: %s", diff)
	}

	if diff := cmp.Diff([]string{"job-b", "job-c", "job-d"}, f.names("ConfigMap")); diff != "" {
		t.Errorf("there are: %s", diff)
	}

	// A name that does not vary can't be made beside itself.
	f.want(event{generation: 2, serial: "d", flag: true}, "!recreate/ManifestInvalid")

	// Deletion takes all versions.
	f.want(event{generation: 3, serial: "e", deleting: true}, "delete/DeleteGate")

	if got := f.names("ConfigMap"); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

// A late event sees that there is a later version, and does not take its own for current.
func TestStaleEventsDoNotPrune(t *testing.T) {
	t.Parallel()

	f := newFleet(t, retain("{historyLimit: 1}"))
	f.want(event{generation: 1, serial: "a"}, "create/Absent")
	f.want(event{generation: 2, serial: "b"}, "create/GenerationChanged")

	f.task = load(t, retain("{historyLimit: 0}"))
	eventually(t, "the cache has both", func() bool {
		found, err := clients[transport.Kubernetes].Find(t.Context(), transport.Query{
			GVK: f.configMap("").GroupVersionKind(), Namespace: f.ns, Labels: map[string]string{adapter.LabelResourceID: f.id},
		}, transport.Cached)

		return err == nil && len(found) == 2 && found[0].GetManagedFields() == nil
	})
	f.want(event{generation: 1, serial: "c"}, "none/Stale")

	if diff := cmp.Diff([]string{"job-a", "job-b"}, f.names("ConfigMap")); diff != "" {
		t.Errorf("there are: %s", diff)
	}

	f.want(event{generation: 2, serial: "d"}, "none/GenerationUnchanged")

	if diff := cmp.Diff([]string{"job-b"}, f.names("ConfigMap")); diff != "" {
		t.Errorf("there are: %s", diff)
	}
}

// Historical versions go by age and by expression, too, on events that change nothing as
// well; the current one never goes.
func TestRetentionRules(t *testing.T) {
	t.Parallel()

	for name, retention := range map[string]string{
		"age":        "{ttl: 1h}",
		"expression": "{expression: \"itemIndex >= 0 && item.metadata.name in items.map(i, i.metadata.name) && value == 'prune'\"}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFleet(t, retain(retention))
			f.versions("a", "b")

			if diff := cmp.Diff([]string{"job-a", "job-b"}, f.names("ConfigMap")); diff != "" {
				t.Fatalf("too early: %s", diff)
			}

			f.clock = testingclock.NewFakePassiveClock(time.Now().Add(2 * time.Hour))

			eventually(t, "the old version goes", func() bool {
				f.want(event{generation: 1, serial: "c", value: "prune"}, "none/GenerationUnchanged")

				return slices.Equal(f.names("ConfigMap"), []string{"job-b"})
			})
		})
	}
}

// What is being deleted already takes nobody's place in the history.
func TestVersionsBeingDeletedDoNotCount(t *testing.T) {
	t.Parallel()

	f := newFleet(t, retain("{historyLimit: 5}"))
	f.versions("a", "b", "c", "d")
	f.edit(f.configMap("job-c"), `{"metadata":{"finalizers":["example.com/slow"]}}`)

	must(t, env.Client.Delete(t.Context(), f.configMap("job-c")))

	f.task = load(t, retain("{historyLimit: 2}"))
	f.live = true

	result := f.want(event{generation: 1, serial: "e"}, "none/GenerationUnchanged")
	if pruned := result.Outcomes[0].Pruned; len(pruned) > 0 {
		t.Errorf("pruned: %v", pruned)
	}

	if diff := cmp.Diff([]string{"job-a", "job-b", "job-c", "job-d"}, f.names("ConfigMap")); diff != "" {
		t.Errorf("there are: %s", diff)
	}

	f.edit(f.configMap("job-c"), `{"metadata":{"finalizers":null}}`)
}

// dying is a client whose objects are deleted by somebody while they are written.
type dying struct{ transport.Client }

func (c dying) Apply(ctx context.Context, live, object *unstructured.Unstructured) (*unstructured.Unstructured, string, error) {
	applied, takenOver, err := c.Client.Apply(ctx, live, object)
	if applied != nil {
		now := metav1.Now()
		applied.SetDeletionTimestamp(&now)
	}

	return applied, takenOver, err
}

// While the current version is being deleted, the earlier ones stay.
func TestAVersionThatGoesKeepsThoseBefore(t *testing.T) {
	t.Parallel()

	f := newFleet(t, retain("{historyLimit: 5}"))
	f.live = true
	f.versions("a", "b")

	f.task = load(t, retain("{historyLimit: 0}"))
	f.clients = map[string]transport.Client{transport.Kubernetes: dying{clients[transport.Kubernetes]}}

	result := f.want(event{generation: 2, serial: "b"}, "apply/GenerationChanged")
	if pruned := result.Outcomes[0].Pruned; len(pruned) > 0 {
		t.Errorf("pruned: %v", pruned)
	}
}

// An event that is older than one that was handled here prunes nothing.
func TestEventsThatWereOvertakenDoNotPrune(t *testing.T) {
	t.Parallel()

	f := newFleet(t, retain("{historyLimit: 5}"))
	f.seen = resources.NewGenerations()
	f.versions("a", "b")

	f.task = load(t, "  []")
	f.want(event{generation: 2})

	f.task = load(t, retain("{historyLimit: 0}"))
	f.live = true
	f.want(event{generation: 1, serial: "c"}, "none/Stale")

	if diff := cmp.Diff([]string{"job-a", "job-b"}, f.names("ConfigMap")); diff != "" {
		t.Errorf("there are: %s", diff)
	}
}

func TestRetentionThatErrs(t *testing.T) {
	t.Parallel()

	f := newFleet(t, retain(`{expression: "item.status.phase == 'Done'"}`))
	f.want(event{generation: 1, serial: "a"}, "create/Absent")
	f.want(event{generation: 1, serial: "b", flag: true}, "!recreate/GateFailed")

	if diff := cmp.Diff([]string{"job-a", "job-b"}, f.names("ConfigMap")); diff != "" {
		t.Errorf("there are: %s", diff)
	}
}

// Detaching frees all versions, and redelivery makes no new one.
func TestDetachVersions(t *testing.T) {
	t.Parallel()

	f := newFleet(t, retain("{historyLimit: 5}"))
	f.versions("a", "b")
	f.want(event{generation: 2, serial: "c", deleting: true, value: "detach"}, "detach/DetachGate")

	for _, name := range []string{"job-a", "job-b"} {
		if got := f.get(f.configMap(name)); len(got.GetLabels()) != 0 {
			t.Errorf("%s has labels %v", name, got.GetLabels())
		}
	}

	f.want(event{generation: 2, serial: "d", deleting: true, value: "detach"}, "none/Detached")

	if diff := cmp.Diff([]string{"job-a", "job-b"}, f.names("ConfigMap")); diff != "" {
		t.Errorf("there are: %s", diff)
	}
}

func owned() string {
	return entry("owner", "owner", "apply: !flag", "delete: deleting") + entry("owned", "owned", "apply: !deleting") +
		"    owner: {resource: owner}\n"
}

// What an owner is, is there, and is in the same namespace or in none. Kubernetes' own garbage
// collector takes what is owned.
func TestOwner(t *testing.T) {
	t.Parallel()

	f := newFleet(t, owned())
	f.want(event{generation: 1, flag: true}, "none/ApplyWhenFalse", "!none/OwnerMissing")
	f.want(event{generation: 1}, "create/Absent", "create/Absent")

	want := []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: f.get(f.configMap("owner")).GetUID()}}
	if diff := cmp.Diff(want, f.get(f.configMap("owned")).GetOwnerReferences()); diff != "" {
		t.Errorf("owners: %s", diff)
	}

	f.want(event{generation: 2}, "apply/GenerationChanged", "apply/GenerationChanged")
	f.want(event{generation: 3, deleting: true}, "delete/DeleteGate", "none/ApplyWhenFalse")
}

func TestOwnerElsewhere(t *testing.T) {
	t.Parallel()

	first, second, _ := strings.Cut(owned(), "  - name: owned")
	f := newFleet(t, first+"  - name: owned"+strings.ReplaceAll(second, "{{ .ns }}", "{{ .value }}"))

	result := f.want(event{generation: 1, value: env.Namespace(t)}, "create/Absent", "!none/ManifestInvalid")
	if err := result.Err(); !strings.Contains(err.Error(), "an owner must be in the same namespace or cluster-scoped") {
		t.Errorf("error: %v", err)
	}
}

// A namespace owns what is in it; its deletion takes its time, and events go on.
func TestNamespaceAsOwner(t *testing.T) {
	t.Parallel()

	space := strings.NewReplacer("ConfigMap", "Namespace", `, namespace: "{{ .ns }}"`, "", `namespace: "{{ .ns }}", `, "",
		`      data: {value: "{{ .value }}"}`+"\n", "").Replace(entry("space", `"{{ .ns }}-inner"`, "delete: deleting"))
	inside := strings.ReplaceAll(entry("inside", "web", "apply: !deleting"), `"{{ .ns }}"`, `"{{ .ns }}-inner"`)
	f := newFleet(t, space+inside+"    owner: {resource: space}\n")

	f.want(event{generation: 1}, "create/Absent", "create/Absent")
	f.want(event{generation: 2, deleting: true}, "delete/DeleteGate...", "none/ApplyWhenFalse")
	f.want(event{generation: 2, deleting: true}, "delete/DeleteGate...", "none/ApplyWhenFalse")
}

// inNamespace makes a namespace, two objects in it, and one of a kind that lives in none,
// whatever namespace its discovery names.
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

// scoped is a client of the cluster that writes down what is read through it, and lets
// somebody else be quicker.
type scoped struct {
	transport.Client

	reads []string
	// meanwhile, if there, runs once after the first create.
	meanwhile func()
}

func newScoped() *scoped { return &scoped{Client: clients[transport.Kubernetes]} }

func (s *scoped) Find(ctx context.Context, query transport.Query, read transport.Read) ([]*unstructured.Unstructured, error) {
	verb := "list "
	if query.Name != "" {
		verb = "get "
	}

	s.reads = append(s.reads, verb+query.GVK.Kind)

	return s.Client.Find(ctx, query, read)
}

func (s *scoped) Create(ctx context.Context, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	made, err := s.Client.Create(ctx, o)

	if meanwhile := s.meanwhile; meanwhile != nil {
		s.meanwhile = nil

		meanwhile()
	}

	return made, err
}

func (s *scoped) wantReads(t *testing.T, want ...string) {
	t.Helper()

	if !slices.Equal(s.reads, want) {
		t.Errorf("reads: %v, want %v", s.reads, want)
	}

	s.reads = nil
}

// What is in a namespace that is not there is not asked for; where the namespace is there,
// it is.
func TestNothingIsReadInANamespaceThatIsNotThere(t *testing.T) {
	t.Parallel()

	f, s := newFleet(t, inNamespace), newScoped()
	f.clients = map[string]transport.Client{transport.Kubernetes: s}

	f.want(event{generation: 1, value: "a"}, "create/Absent", "create/Absent", "create/Absent", "create/Absent")
	s.wantReads(t, "get Namespace", "get PriorityClass")

	f.want(event{generation: 1, value: "a"}, "none/GenerationUnchanged", "none/GenerationUnchanged",
		"none/GenerationUnchanged", "none/GenerationUnchanged")
	s.wantReads(t, "get Namespace", "get ConfigMap", "list ConfigMap", "get PriorityClass")
}

// An object that somebody makes in the namespace as soon as it is there is found after all,
// and left alone.
func TestSomebodyElseIsQuickerInANewNamespace(t *testing.T) {
	t.Parallel()

	f, s := newFleet(t, inNamespace), newScoped()
	f.clients = map[string]transport.Client{transport.Kubernetes: s}
	s.meanwhile = func() {
		theirs := f.object("v1", "ConfigMap", "named")
		theirs.SetNamespace(f.ns + "-new")

		if err := env.Client.Create(t.Context(), theirs); err != nil {
			t.Error(err)
		}
	}

	f.want(event{generation: 1, value: "a"}, "create/Absent", "!create/NotManaged", "none/EarlierFailed", "none/EarlierFailed")
}
