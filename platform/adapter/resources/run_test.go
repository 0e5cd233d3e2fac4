// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/test/fixes"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// newEntry returns a task entry for a ConfigMap that is discovered by its name. Gates have the form
// "delete: EXPRESSION".
func newEntry(name, object string, gates ...string) string {
	var (
		when  string
		steps strings.Builder
	)

	for _, gate := range gates {
		which, expression, _ := strings.Cut(gate, ": ")

		line := fmt.Sprintf("{when: {expression: %q}}", expression)
		if which == "when" {
			when = fmt.Sprintf("    when: {expression: %q}\n", expression)
		} else {
			steps.WriteString("      " + which + ": " + line + "\n")
		}
	}

	lifecycle := steps.String()
	if lifecycle != "" {
		lifecycle = "    lifecycle:\n" + lifecycle
	}

	return strings.NewReplacer("NAME", name, "OBJECT", object).Replace(`
  - name: NAME
    discovery: {namespace: "{{ .ns }}", by_name: OBJECT}
    manifest:
      apiVersion: v1
      kind: ConfigMap
      metadata: {name: OBJECT, namespace: "{{ .ns }}"}
      data: {value: "{{ .value }}"}
`) + when + lifecycle
}

// newSimpleTask returns a task with one ConfigMap that exists until the resource is deleted.
func newSimpleTask(gates ...string) string {
	return newEntry("config", "web", append(gates, "delete: deleting")...)
}

// ofResource discovers all objects of the resource.
const ofResource = `by_selectors: {label_selector: {hyperfleet.io/resource-id: "{{ .id }}"}}`

// findByLabel replaces discovery by name with discovery by label.
func findByLabel(taskFile string) string {
	return strings.NewReplacer("by_name: web", "by_selectors: {label_selector: {app: web}}",
		"{name: web,", "{name: web, labels: {app: web},").Replace(taskFile)
}

func TestObjectLifecycle(t *testing.T) {
	t.Parallel()

	f := newFixture(t, newSimpleTask())

	f.requireOutcomes(event{generation: 2, value: "a"}, "create/Absent")

	made := f.getObject(f.newConfigMap("web"))
	if got := made.GetLabels(); got[adapter.LabelAdapter] != adapterName || got[adapter.LabelResourceID] != f.id ||
		got[adapter.LabelResourceName] != "config" {
		t.Errorf("labels: %v", got)
	}

	result := f.requireOutcomes(event{generation: 2, value: "a"}, "none/GenerationUnchanged")
	if _, there := result.Objects["config"]; !there {
		t.Errorf("unchanged: %v", result.Objects)
	}

	// The content can change without the generation, for example with the resource's parent.
	f.requireOutcomes(event{generation: 2, value: "b"}, "apply/ContentChanged")

	if got := f.getData("web")["value"]; got != "b" {
		t.Errorf("value is %q", got)
	}

	f.requireOutcomes(event{generation: 3, value: "c"}, "apply/GenerationChanged")

	if got := f.getObject(made).GetAnnotations()[adapter.AnnotationGeneration]; got != "3" {
		t.Errorf("the generation is %q", got)
	}

	f.requireOutcomes(event{generation: 1, value: "old"}, "none/Stale")

	if got := f.getData("web")["value"]; got != "c" {
		t.Errorf("value is %q", got)
	}

	// An object that was deleted by hand is recreated.
	must.Do(t, env.Client.Delete(t.Context(), made))

	timing.WaitUntil(t, "the object is recreated", func() bool {
		f.runEvent(event{generation: 3, value: "c"})

		return f.getObject(f.newConfigMap("web")) != nil
	})

	// The event that deletes the object no longer sees it.
	result = f.requireOutcomes(event{generation: 4, deleting: true}, "delete/DeleteGate")
	if _, there := result.Objects["config"]; there {
		t.Error("expressions still see the deleted object")
	}

	f.requireOutcomes(event{generation: 4, deleting: true}, "none/ObjectNotFound")
}

// An object of others is neither changed nor deleted, and the error names its owner.
func TestForeignObjectsAreLeftAlone(t *testing.T) {
	t.Parallel()

	f := newFixture(t, newSimpleTask())
	foreign := f.newConfigMap("web")
	foreign.Object["data"] = map[string]any{"value": "theirs"}

	must.Do(t, env.Client.Create(t.Context(), foreign))

	err := f.requireOutcomes(event{generation: 1, value: "a"}, "!none/NotManaged").Err()
	if errclass.ClassOf(err) != errclass.Permanent || !strings.Contains(err.Error(), "ConfigMap "+f.ns+"/web") {
		t.Errorf("error: %v", err)
	}

	f.requireOutcomes(event{generation: 2, deleting: true}, "none/NotManaged")

	if got := f.getObject(foreign).GetResourceVersion(); got != foreign.GetResourceVersion() {
		t.Error("the foreign object was changed")
	}

	// The object is handed over as the error describes.
	fixes.Kubectl(t, env, err.Error(), "--cascade=orphan", "--cascade=orphan --wait=false")

	// This API server runs without the garbage collector, which removes the finalizer orphan.
	must.Do(t, env.Client.Patch(t.Context(), foreign, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))

	f.requireOutcomes(event{generation: 1, value: "mine"}, "create/Absent")
}

// An object that only has the selected labels does not count as a version.
func TestForgedVersionsAreNotDeleted(t *testing.T) {
	t.Parallel()

	f := newFixture(t, newRetentionTask("{historyLimit: 1}"))
	f.requireOutcomes(event{generation: 1, serial: "a"}, "create/Absent")

	forged := f.newConfigMap("precious")
	forged.SetLabels(f.getObject(f.newConfigMap("job-a")).GetLabels())
	forged.SetAnnotations(f.getObject(f.newConfigMap("job-a")).GetAnnotations())

	must.Do(t, env.Client.Create(t.Context(), forged))

	f.requireOutcomes(event{generation: 1, serial: "b", flag: true}, "recreate/RecreateGate")
	f.requireOutcomes(event{generation: 1, serial: "c", flag: true}, "recreate/RecreateGate")
	f.requireOutcomes(event{generation: 2, serial: "d", deleting: true}, "delete/DeleteGate")

	if diff := cmp.Diff([]string{"precious"}, f.listNames("ConfigMap")); diff != "" {
		t.Errorf("remaining objects: %s", diff)
	}
}

// Later events sign existing objects with a new key, so that the old key can be removed.
func TestKeyRotation(t *testing.T) {
	t.Parallel()

	f := newFixture(t, newSimpleTask())
	old, fresh := strings.Repeat("k", 32), strings.Repeat("n", 32)

	f.requireOutcomes(event{generation: 1, value: "a"}, "create/Absent")
	f.stamper = newStamper(t, fresh+"\n"+old)
	timing.WaitUntil(t, "the object is signed with the new key", func() bool {
		f.requireOutcomes(event{generation: 1, value: "a"}, "none/GenerationUnchanged")

		err := newKeys(t, fresh).Verify(f.getObject(f.newConfigMap("web")), schema.GroupKind{Kind: "ConfigMap"})

		return err == nil
	})

	f.stamper = newStamper(t, fresh)
	timing.WaitUntil(t, "the cache has it", func() bool {
		result := f.runEvent(event{generation: 2, value: "b"})

		return formatOutcomes(result)[0] == "apply/GenerationChanged"
	})

	f.stamper = newStamper(t, old)
	f.requireOutcomes(event{generation: 3, deleting: true}, "!none/Unproven")
}

func newGatedTask() string {
	return newEntry("config", "web", "when: !flag", "apply: !resources.?config.hasValue()", "delete: deleting") +
		strings.Replace(newEntry("sibling", "sibling", "apply: resources.?config.hasValue()", "delete: deleting && !resources.?config.hasValue()"),
			".value", ".resources.config.metadata.name", 1)
}

func TestGates(t *testing.T) {
	t.Parallel()

	f := newFixture(t, newGatedTask())

	f.requireOutcomes(event{generation: 1, flag: true}, "none/WhenFalse", "none/ApplyWhenFalse")
	// The second entry sees the object that the first has created for the same event.
	f.requireOutcomes(event{generation: 1, value: "a"}, "create/Absent", "create/Absent")

	if got := f.getData("sibling")["value"]; got != "web" {
		t.Errorf("the sibling has value %q", got)
	}

	// After the creation, later generations do not change the object.
	f.requireOutcomes(event{generation: 2, value: "b"}, "none/ApplyWhenFalse", "apply/GenerationChanged")
	// A false when gate does not prevent deletion, and the next entry no longer sees the deleted object.
	f.requireOutcomes(event{generation: 3, flag: true, deleting: true}, "delete/DeleteGate", "delete/DeleteGate")

	if got := f.listNames("ConfigMap"); len(got) != 0 {
		t.Errorf("remaining objects: %v", got)
	}
}

// While when is false, an entry is neither patched nor recreated, and it is still detached.
func TestFalseWhen(t *testing.T) {
	t.Parallel()

	const patch = "    lifecycle:\n      patch: [{when: {expression: value == 'b'}, document: {data: {patched: '1'}}}]\n"

	f := newFixture(t, newEntry("patched", "patched", "when: !flag")+patch+
		newEntry("recreated", "recreated", "when: !flag", "recreate: value == 'b'")+
		newEntry("detached", "detached", "when: !flag", "detach: value == 'b'"))

	f.requireOutcomes(event{generation: 1, value: "a"}, "create/Absent", "create/Absent", "create/Absent")
	f.requireOutcomes(event{generation: 1, value: "b", flag: true}, "none/WhenFalse", "none/WhenFalse", "detach/DetachGate")

	if got := f.getData("patched"); got["patched"] != "" {
		t.Errorf("the object was patched: %v", got)
	}

	f.requireOutcomes(event{generation: 1, value: "b"}, "patch/PatchGate", "recreate/RecreateGate", "none/Detached")
}

// Gates and manifests also see the objects of later entries.
func TestGatesSeeLaterEntries(t *testing.T) {
	t.Parallel()

	f := newFixture(t, newEntry("first", "first", "when: !resources.?third.hasValue()")+
		strings.Replace(newEntry("second", "second", "when: resources.?third.hasValue()"), ".value", ".resources.third.metadata.name", 1)+
		newEntry("third", "last"))

	f.requireOutcomes(event{generation: 1}, "create/Absent", "none/WhenFalse", "create/Absent")
	f.requireOutcomes(event{generation: 2}, "none/WhenFalse", "create/Absent", "apply/GenerationChanged")

	if got := f.getData("second")["value"]; got != "last" {
		t.Errorf("the manifest of the second entry has the value %q", got)
	}
}

// A gate with an error does not count as false. Later entries wait, but are still deleted when needed.
func TestGateErrors(t *testing.T) {
	t.Parallel()

	f := newFixture(t, newEntry("first", "first", "recreate: resources.first.data.value > 1", "delete: deleting && flag")+
		newEntry("second", "second", "delete: deleting"))

	f.requireOutcomes(event{generation: 1, value: "a"}, "create/Absent", "create/Absent")

	result := f.requireOutcomes(event{generation: 2, value: "b"}, "!none/GateFailed", "none/EarlierFailed")
	if err := result.Err(); errclass.ClassOf(err) != errclass.Permanent || !strings.Contains(err.Error(), "evaluate lifecycle.recreate.when") {
		t.Errorf("error: %v (%s)", err, errclass.ClassOf(err))
	}

	if f.getData("second")["value"] != "a" {
		t.Error("an entry after a failed one was written")
	}

	f.requireOutcomes(event{generation: 3, deleting: true}, "!none/GateFailed", "delete/DeleteGate")
	f.requireOutcomes(event{generation: 3, deleting: true, flag: true}, "delete/DeleteGate", "none/ObjectNotFound")
}

const patched = `    lifecycle:
      patch:
        - when: {expression: "resources.?config.hasValue() && dig(resources.config.metadata.annotations, 'example.io/status') != value"}
          document: {metadata: {annotations: {example.io/status: "{{ .value }}"}}, data: {last: first}}
        - when: {expression: "flag && dig(resources.config.data, 'extra') == null"}
          document: {data: {extra: "{{ .value }}", last: second, value: null}}
  - name: only
    discovery: {api_version: v1, kind: ConfigMap, namespace: "{{ .ns }}", by_name: other}
    lifecycle:
      patch:
        - when: {expression: "resources.?only.hasValue() && flag"}
          document: {data: {x: y}}
`

func TestPatches(t *testing.T) {
	t.Parallel()

	f := newFixture(t, newEntry("config", "web")+patched)

	f.requireOutcomes(event{generation: 1, value: "a"}, "create/Absent", "none/NothingToApply")
	f.requireOutcomes(event{generation: 1, value: "a"}, "patch/PatchGate", "none/NothingToApply")

	if diff := cmp.Diff(map[string]string{"last": "first", "value": "a"}, f.getData("web")); diff != "" {
		t.Errorf("data after one of two patches: %s", diff)
	}

	f.requireOutcomes(event{generation: 1, value: "a"}, "none/GenerationUnchanged", "none/NothingToApply")
	// Both patches are applied in order, and the manifest is not.
	f.requireOutcomes(event{generation: 2, value: "b", flag: true}, "patch/PatchGate", "none/NothingToApply")

	if diff := cmp.Diff(map[string]string{"extra": "b", "last": "second"}, f.getData("web")); diff != "" {
		t.Errorf("data: %s", diff)
	}

	// The next event applies the manifest, and keeps the fields that patches have added.
	f.requireOutcomes(event{generation: 2, value: "b", flag: true}, "apply/GenerationChanged", "none/NothingToApply")

	if diff := cmp.Diff(map[string]string{"extra": "b", "last": "second", "value": "b"}, f.getData("web")); diff != "" {
		t.Errorf("data: %s", diff)
	}

	// Foreign objects are not patched.
	must.Do(t, env.Client.Create(t.Context(), f.newConfigMap("other")))

	f.requireOutcomes(event{generation: 2, value: "b", flag: true}, "none/GenerationUnchanged", "!none/NotManaged")
	f.requireOutcomes(event{generation: 2, value: "b"}, "none/GenerationUnchanged", "none/NothingToApply")
}

// If the adapter shuts down, the error is transient, because it says nothing about the task file.
func TestCanceledContextIsTransient(t *testing.T) {
	t.Parallel()

	f := newFixture(t, newGatedTask())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	result, err := resources.Run(ctx, f.newInput(event{generation: 1, value: "a"}))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Run() = %v", err)
	}

	for _, outcome := range result.FailedOutcomes() {
		if errclass.ClassOf(outcome.Err) != errclass.Transient {
			t.Errorf("%s: %v is %s", outcome.Resource, outcome.Err, errclass.ClassOf(outcome.Err))
		}
	}

	if got := f.listNames("ConfigMap"); len(got) != 0 {
		t.Errorf("objects exist: %v", got)
	}
}

// refusingClient counts writes, and refuses each with a transient error.
type refusingClient struct {
	transport.Client

	writes int
}

func (c *refusingClient) refuse() error {
	c.writes++

	return errclass.New(errclass.Transient, "Unavailable", "the API server is unavailable")
}

func (c *refusingClient) Create(context.Context, *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	return nil, c.refuse()
}

func (c *refusingClient) Apply(context.Context, *unstructured.Unstructured, *unstructured.Unstructured) (
	*unstructured.Unstructured, string, error,
) {
	return nil, "", c.refuse()
}

func (c *refusingClient) Delete(context.Context, transport.Ref, metav1.DeletionPropagation) error {
	return c.refuse()
}

// A write that fails is not repeated for the same event.
func TestWritesAreNotRepeated(t *testing.T) {
	t.Parallel()

	f := newFixture(t, newSimpleTask())

	for _, e := range []event{{generation: 1, value: "a"}, {generation: 2, value: "b"}, {generation: 3, deleting: true}} {
		refusing := &refusingClient{Client: clients[transport.Kubernetes]}
		f.clients = map[string]transport.Client{transport.Kubernetes: refusing}

		if err := f.runEvent(e).Err(); errclass.ClassOf(err) != errclass.Transient || refusing.writes != 1 {
			t.Errorf("event %+v: %d writes, error %v", e, refusing.writes, err)
		}

		f.clients = clients

		if err := f.runEvent(e).Err(); err != nil {
			t.Error(err)
		}
	}
}

// An admission error is permanent and contains the admission plugin's message. The existing object stays.
func TestRefusedByAdmission(t *testing.T) {
	t.Parallel()

	f := newFixture(t, strings.Replace(newSimpleTask(), "data: {value:", "data: {refuse:", 1))
	f.requireOutcomes(event{generation: 1, value: "no"}, "create/Absent")
	timing.WaitUntil(t, "the admission policy is active", func() bool {
		probe := f.newConfigMap("probe")
		probe.Object["data"] = map[string]any{"refuse": "yes"}

		return env.Client.Create(t.Context(), probe, client.DryRunAll) != nil
	})

	result := f.runEvent(event{generation: 2, value: "yes"})
	if err := result.Err(); errclass.ClassOf(err) != errclass.Permanent || !strings.Contains(err.Error(), "refused by the house") {
		t.Errorf("outcome %v, error %v (%s)", formatOutcomes(result), err, errclass.ClassOf(err))
	}

	if got := f.getData("web")["refuse"]; got != "no" {
		t.Errorf("value is %q", got)
	}

	f.requireOutcomes(event{generation: 3, value: "never"}, "apply/GenerationChanged")
}

// Changes made by hand are reverted with the next generation, and a message reports it.
func TestFieldsAreTakenOver(t *testing.T) {
	t.Parallel()

	f := newFixture(t, newSimpleTask())
	f.requireOutcomes(event{generation: 1, value: "a"}, "create/Absent")
	f.patchByHand(f.newConfigMap("web"), `{"data":{"value":"by hand"}}`)

	result := f.requireOutcomes(event{generation: 2, value: "b"}, "apply/GenerationChanged")
	if got := result.Outcomes[0].Message; f.getData("web")["value"] != "b" || !strings.Contains(got, `.data.value (conflict with "somebody"`) {
		t.Errorf("value %q, message %q", f.getData("web")["value"], got)
	}
}

func TestInvalidManifests(t *testing.T) {
	t.Parallel()

	cases := map[string]struct{ change, to, reason, wantText string }{
		"another name":      {"metadata: {name: web", "metadata: {name: other", "ManifestInvalid", "discovery looks for the name web"},
		"another namespace": {`metadata: {name: web, namespace: "{{ .ns }}"`, "metadata: {name: web, namespace: default", "ManifestInvalid", "discovery looks in namespace"},
		"labels that do not match": {
			"by_name: web", "by_selectors: {label_selector: {app: web}}", "ManifestInvalid", "its labels do not match those of discovery: app=web",
		},
		"generation that is not a number": {
			"metadata: {name: web,", `metadata: {annotations: {hyperfleet.io/generation: "x"}, name: web,`, "ManifestInvalid", "is not an integer",
		},
		"invalid name": {
			"web", "Web_1", "ManifestInvalid", "metadata.name is not a valid name",
		},
		"missing namespace": {`"{{ .ns }}"`, "nowhere", "NamespaceMissing", `namespaces "nowhere" not found`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t, strings.ReplaceAll(newSimpleTask(), tc.change, tc.to))

			result := f.runEvent(event{generation: 1, value: "a"})
			if out := result.Outcomes[0]; out.Err == nil || out.Reason != tc.reason || !strings.Contains(out.Err.Error(), tc.wantText) {
				t.Errorf("outcome %v, error %v, want %s with %q", formatOutcomes(result), out.Err, tc.reason, tc.wantText)
			}

			if got := f.listNames("ConfigMap"); len(got) != 0 {
				t.Errorf("objects were created nevertheless: %v", got)
			}

			transient := errors.Is(result.Err(), transport.ErrNoNamespace)
			if got := errclass.ClassOf(result.Err()); (got == errclass.Transient) != transient {
				t.Errorf("class is %s", got)
			}
		})
	}
}

// Entries with the same kind and selector are distinguished by the label with the entry's name.
func TestSiblings(t *testing.T) {
	t.Parallel()

	byID := strings.NewReplacer("by_name: one", ofResource, "by_name: two", ofResource)
	f := newFixture(t, byID.Replace(newEntry("one", "one", "delete: deleting")+newEntry("two", "two", "delete: deleting && flag")))

	f.requireOutcomes(event{generation: 1}, "create/Absent", "create/Absent")
	f.requireOutcomes(event{generation: 1}, "none/GenerationUnchanged", "none/GenerationUnchanged")
	f.requireOutcomes(event{generation: 2, deleting: true}, "delete/DeleteGate", "apply/GenerationChanged")

	if diff := cmp.Diff([]string{"two"}, f.listNames("ConfigMap")); diff != "" {
		t.Errorf("remaining objects: %s", diff)
	}

	// If its label is removed by hand, the object is found by its name, and the label is restored.
	timing.WaitUntil(t, "the label is restored", func() bool {
		f.patchByHand(f.newConfigMap("two"), `{"metadata":{"labels":{"hyperfleet.io/resource-id":"by-hand"}}}`)

		f.runEvent(event{generation: 3})

		return f.getObject(f.newConfigMap("two")).GetLabels()[adapter.LabelResourceID] == f.id
	})
}

// An event that is older than the last handled one does not recreate an object.
func TestStaleEventsDoNotRecreate(t *testing.T) {
	t.Parallel()

	f := newFixture(t, newSimpleTask())
	f.seen = resources.NewGenerations()

	f.requireOutcomes(event{generation: 5, value: "a"}, "create/Absent")
	f.requireOutcomes(event{generation: 6, deleting: true}, "delete/DeleteGate")
	f.requireOutcomes(event{generation: 5, value: "a"}, "none/Stale")
	f.requireOutcomes(event{generation: 6, deleting: true}, "none/ObjectNotFound")
}

func TestViewHasLabels(t *testing.T) {
	t.Parallel()

	f := newFixture(t, newSimpleTask("apply: !('x' in resources.config.metadata.labels) && !('x' in resources.config.metadata.annotations)"))

	must.Do(t, env.Client.Create(t.Context(), f.newConfigMap("web")))

	result := f.requireOutcomes(event{generation: 1, value: "a"}, "!none/NotManaged")

	shown, _ := result.Objects["config"].(map[string]any)
	if _, there, _ := unstructured.NestedMap(shown, "metadata", "labels"); !there {
		t.Errorf("no labels in %v", shown)
	}
}
