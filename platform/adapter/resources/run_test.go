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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
)

// entry keeps a ConfigMap by its name. Its gates are "delete: EXPRESSION", and so on.
func entry(name, object string, gates ...string) string {
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

// simple keeps one until the resource is deleted.
func simple(gates ...string) string {
	return entry("config", "web", append(gates, "delete: deleting")...)
}

// ofResource finds all objects of the resource.
const ofResource = `by_selectors: {label_selector: {hyperfleet.io/resource-id: "{{ .id }}"}}`

// byLabel finds what a task finds by name by a label.
func byLabel(taskFile string) string {
	return strings.NewReplacer("by_name: web", "by_selectors: {label_selector: {app: web}}",
		"{name: web,", "{name: web, labels: {app: web},").Replace(taskFile)
}

func TestLifeOfAnObject(t *testing.T) {
	t.Parallel()

	f := newFleet(t, simple())

	f.want(event{generation: 2, value: "a"}, "create/Absent")

	made := f.get(f.configMap("web"))
	if got := made.GetLabels(); got[adapter.LabelAdapter] != adapterName || got[adapter.LabelResourceID] != f.id ||
		got[adapter.LabelResourceName] != "config" {
		t.Errorf("labels: %v", got)
	}

	result := f.want(event{generation: 2, value: "b"}, "none/GenerationUnchanged")
	if _, there := result.Objects["config"]; !there || f.data("web")["value"] != "a" {
		t.Errorf("unchanged: %v, %v", result.Objects, f.data("web"))
	}

	f.want(event{generation: 3, value: "c"}, "apply/GenerationChanged")
	f.want(event{generation: 1, value: "old"}, "none/Stale")

	if got := f.data("web")["value"]; got != "c" {
		t.Errorf("value is %q", got)
	}

	// By hand: gone, it is made again.
	must(t, env.Client.Delete(t.Context(), made))

	eventually(t, "it is made again", func() bool {
		f.run(event{generation: 3, value: "c"})

		return f.get(f.configMap("web")) != nil
	})

	// The same event sees at once that it is gone.
	result = f.want(event{generation: 4, deleting: true}, "delete/DeleteGate")
	if _, there := result.Objects["config"]; there {
		t.Error("the deleted object is still seen")
	}

	f.want(event{generation: 4, deleting: true}, "none/NothingThere")
}

// An object of somebody else is neither changed nor deleted, and it is told whose it is.
func TestStrangersAreLeftAlone(t *testing.T) {
	t.Parallel()

	f := newFleet(t, simple())
	stranger := f.configMap("web")
	stranger.Object["data"] = map[string]any{"value": "theirs"}

	must(t, env.Client.Create(t.Context(), stranger))

	result := f.want(event{generation: 1, value: "a"}, "!none/NotManaged")

	if err := result.Err(); errclass.ClassOf(err) != errclass.Permanent || !strings.Contains(err.Error(), "ConfigMap "+f.ns+"/web") ||
		!strings.Contains(err.Error(), "To hand it over, delete it") {
		t.Errorf("error: %v", err)
	}

	f.want(event{generation: 2, deleting: true}, "none/NotManaged")

	if got := f.get(stranger).GetResourceVersion(); got != stranger.GetResourceVersion() {
		t.Error("the stranger's object was written")
	}

	// Handed over as the error says.
	must(t, env.Client.Delete(t.Context(), stranger))

	f.want(event{generation: 1, value: "mine"}, "create/Absent")
}

// Labels that are found by a selector make nothing a version of ours.
func TestForgedVersionsAreNotDeleted(t *testing.T) {
	t.Parallel()

	f := newFleet(t, retain("{historyLimit: 1}"))
	f.want(event{generation: 1, serial: "a"}, "create/Absent")

	forged := f.configMap("precious")
	forged.SetLabels(f.get(f.configMap("job-a")).GetLabels())
	forged.SetAnnotations(f.get(f.configMap("job-a")).GetAnnotations())

	must(t, env.Client.Create(t.Context(), forged))

	f.want(event{generation: 1, serial: "b", flag: true}, "recreate/RecreateGate")
	f.want(event{generation: 1, serial: "c", flag: true}, "recreate/RecreateGate")
	f.want(event{generation: 2, serial: "d", deleting: true}, "delete/DeleteGate")

	if diff := cmp.Diff([]string{"precious"}, f.names("ConfigMap")); diff != "" {
		t.Errorf("left: %s", diff)
	}
}

// A new key signs what is there with the events that come by, so that the old one can go.
func TestKeyRotation(t *testing.T) {
	t.Parallel()

	f := newFleet(t, simple())
	old, fresh := strings.Repeat("k", 32), strings.Repeat("n", 32)

	f.want(event{generation: 1, value: "a"}, "create/Absent")
	f.stamper = stamperWith(t, fresh+"\n"+old)
	eventually(t, "the object is signed anew", func() bool {
		f.want(event{generation: 1, value: "a"}, "none/GenerationUnchanged")

		err := keysWith(t, fresh).Verify(f.get(f.configMap("web")), schema.GroupKind{Kind: "ConfigMap"})

		return err == nil
	})

	f.stamper = stamperWith(t, fresh)
	eventually(t, "the cache has it", func() bool {
		result := f.run(event{generation: 2, value: "b"})

		return short(result)[0] == "apply/GenerationChanged"
	})

	f.stamper = stamperWith(t, old)
	f.want(event{generation: 3, deleting: true}, "none/NotManaged")
}

func gated() string {
	return entry("config", "web", "when: !flag", "apply: !resources.?config.hasValue()", "delete: deleting") +
		strings.Replace(entry("sibling", "sibling", "apply: resources.?config.hasValue()", "delete: deleting && !resources.?config.hasValue()"),
			".value", ".resources.config.metadata.name", 1)
}

func TestGates(t *testing.T) {
	t.Parallel()

	f := newFleet(t, gated())

	f.want(event{generation: 1, flag: true}, "none/WhenFalse", "none/ApplyWhenFalse")
	// The second sees what the first has made in the same event.
	f.want(event{generation: 1, value: "a"}, "create/Absent", "create/Absent")

	if got := f.data("sibling")["value"]; got != "web" {
		t.Errorf("the sibling is of %q", got)
	}

	// Created once: later generations leave it.
	f.want(event{generation: 2, value: "b"}, "none/ApplyWhenFalse", "apply/GenerationChanged")
	// A false when does not keep from deleting, and what is gone is gone for the next.
	f.want(event{generation: 3, flag: true, deleting: true}, "delete/DeleteGate", "delete/DeleteGate")

	if got := f.names("ConfigMap"); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

// A gate that errors is never false; what builds on the entry waits, but goes when it has
// to.
func TestGateErrors(t *testing.T) {
	t.Parallel()

	f := newFleet(t, entry("first", "first", "recreate: resources.first.status.phase == 'Done'", "delete: deleting && flag")+
		entry("second", "second", "delete: deleting"))

	f.want(event{generation: 1, value: "a"}, "create/Absent", "create/Absent")

	result := f.want(event{generation: 2, value: "b"}, "!none/GateFailed", "none/EarlierFailed")
	if err := result.Err(); errclass.ClassOf(err) != errclass.Permanent || !strings.Contains(err.Error(), "evaluate lifecycle.recreate.when") {
		t.Errorf("error: %v (%s)", err, errclass.ClassOf(err))
	}

	if f.data("second")["value"] != "a" {
		t.Error("what comes after a failure was written")
	}

	f.want(event{generation: 3, deleting: true}, "!none/GateFailed", "delete/DeleteGate")
	f.want(event{generation: 3, deleting: true, flag: true}, "delete/DeleteGate", "none/NothingThere")
}

const patched = `    lifecycle:
      patch:
        - when: {expression: "resources.?config.hasValue() && dig(resources.config.metadata.annotations, 'example.io/status') != value"}
          document: {metadata: {annotations: {example.io/status: "{{ .value }}"}}}
        - when: {expression: "flag && dig(resources.config.data, 'extra') == null"}
          document: {data: {extra: "{{ .value }}", value: null}}
  - name: only
    discovery: {api_version: v1, kind: ConfigMap, namespace: "{{ .ns }}", by_name: other}
    lifecycle:
      patch:
        - when: {expression: "resources.?only.hasValue() && flag"}
          document: {data: {x: y}}
`

func TestPatches(t *testing.T) {
	t.Parallel()

	f := newFleet(t, entry("config", "web")+patched)

	f.want(event{generation: 1, value: "a"}, "create/Absent", "none/NothingToApply")
	f.want(event{generation: 1, value: "a"}, "patch/PatchGate", "none/NothingToApply")
	f.want(event{generation: 1, value: "a"}, "none/GenerationUnchanged", "none/NothingToApply")
	// Both, in their order, and no apply beside.
	f.want(event{generation: 2, value: "b", flag: true}, "patch/PatchGate", "none/NothingToApply")

	if diff := cmp.Diff(map[string]string{"extra": "b"}, f.data("web")); diff != "" {
		t.Errorf("data: %s", diff)
	}

	// The apply comes with the next event, and leaves what patches have added.
	f.want(event{generation: 2, value: "b", flag: true}, "apply/GenerationChanged", "none/NothingToApply")

	if diff := cmp.Diff(map[string]string{"extra": "b", "value": "b"}, f.data("web")); diff != "" {
		t.Errorf("data: %s", diff)
	}

	// What is found and is not ours is not patched.
	must(t, env.Client.Create(t.Context(), f.configMap("other")))

	f.want(event{generation: 2, value: "b", flag: true}, "none/GenerationUnchanged", "!none/NotManaged")
	f.want(event{generation: 2, value: "b"}, "none/GenerationUnchanged", "none/NothingToApply")
}

// The end of an adapter's life says nothing about its task file.
func TestEndOfTimeIsTransient(t *testing.T) {
	t.Parallel()

	f := newFleet(t, gated())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	result, err := resources.Run(ctx, f.input(event{generation: 1, value: "a"}))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Run() = %v", err)
	}

	for _, outcome := range result.FailedOutcomes() {
		if errclass.ClassOf(outcome.Err) != errclass.Transient {
			t.Errorf("%s: %v is %s", outcome.Resource, outcome.Err, errclass.ClassOf(outcome.Err))
		}
	}

	if got := f.names("ConfigMap"); len(got) != 0 {
		t.Errorf("made: %v", got)
	}
}

// A refusal by admission is permanent and told in its own words; what is there stays.
func TestRefusedByAdmission(t *testing.T) {
	t.Parallel()

	f := newFleet(t, strings.Replace(simple(), "data: {value:", "data: {refuse:", 1))
	f.want(event{generation: 1, value: "no"}, "create/Absent")
	eventually(t, "the policy is in force", func() bool {
		probe := f.configMap("probe")
		probe.Object["data"] = map[string]any{"refuse": "yes"}

		return env.Client.Create(t.Context(), probe, client.DryRunAll) != nil
	})

	result := f.run(event{generation: 2, value: "yes"})
	if err := result.Err(); errclass.ClassOf(err) != errclass.Permanent || !strings.Contains(err.Error(), "refused by the house") {
		t.Errorf("outcome %v, error %v (%s)", short(result), err, errclass.ClassOf(err))
	}

	if got := f.data("web")["refuse"]; got != "no" {
		t.Errorf("value is %q", got)
	}

	f.want(event{generation: 3, value: "never"}, "apply/GenerationChanged")
}

// What was drifted by hand comes back with the next generation, and that is told.
func TestTakenOver(t *testing.T) {
	t.Parallel()

	f := newFleet(t, simple())
	f.want(event{generation: 1, value: "a"}, "create/Absent")
	f.edit(f.configMap("web"), `{"data":{"value":"by hand"}}`)

	result := f.want(event{generation: 2, value: "b"}, "apply/GenerationChanged")
	if got := result.Outcomes[0].Message; f.data("web")["value"] != "b" || !strings.Contains(got, `.data.value (conflict with "somebody"`) {
		t.Errorf("value %q, message %q", f.data("web")["value"], got)
	}
}

func TestManifestsThatCanNotBe(t *testing.T) {
	t.Parallel()

	cases := map[string]struct{ change, to, reason, says string }{
		"another name":      {"metadata: {name: web", "metadata: {name: other", "ManifestInvalid", "discovery looks for the name web"},
		"another namespace": {`metadata: {name: web, namespace: "{{ .ns }}"`, "metadata: {name: web, namespace: default", "ManifestInvalid", "discovery looks in namespace"},
		"labels that are not found": {
			"by_name: web", "by_selectors: {label_selector: {app: web}}", "ManifestInvalid", "its labels do not match those of discovery: app=web",
		},
		"generation that is a word": {
			"metadata: {name: web,", `metadata: {annotations: {hyperfleet.io/generation: "x"}, name: web,`, "ManifestInvalid", "is not an integer",
		},
		"no name": {
			"web", "Web_1", "ManifestInvalid", "metadata.name is not a valid name",
		},
		"namespace that is not there": {`"{{ .ns }}"`, "nowhere", "NamespaceMissing", `namespaces "nowhere" not found`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFleet(t, strings.ReplaceAll(simple(), tc.change, tc.to))

			result := f.run(event{generation: 1, value: "a"})
			if out := result.Outcomes[0]; out.Err == nil || out.Reason != tc.reason || !strings.Contains(out.Err.Error(), tc.says) {
				t.Errorf("outcome %v, error %v, want %s with %q", short(result), out.Err, tc.reason, tc.says)
			}

			if got := f.names("ConfigMap"); len(got) != 0 {
				t.Errorf("made all the same: %v", got)
			}

			transient := errors.Is(result.Err(), transport.ErrNoNamespace)
			if got := errclass.ClassOf(result.Err()); (got == errclass.Transient) != transient {
				t.Errorf("class is %s", got)
			}
		})
	}
}

// Entries of one kind and one selector are told apart by the label of their name.
func TestSiblings(t *testing.T) {
	t.Parallel()

	byID := strings.NewReplacer("by_name: one", ofResource, "by_name: two", ofResource)
	f := newFleet(t, byID.Replace(entry("one", "one", "delete: deleting")+entry("two", "two", "delete: deleting && flag")))

	f.want(event{generation: 1}, "create/Absent", "create/Absent")
	f.want(event{generation: 1}, "none/GenerationUnchanged", "none/GenerationUnchanged")
	f.want(event{generation: 2, deleting: true}, "delete/DeleteGate", "apply/GenerationChanged")

	if diff := cmp.Diff([]string{"two"}, f.names("ConfigMap")); diff != "" {
		t.Errorf("left: %s", diff)
	}

	// The label it is found by, taken off by hand: it is found by its name, and fixed.
	eventually(t, "the label comes back", func() bool {
		f.edit(f.configMap("two"), `{"metadata":{"labels":{"hyperfleet.io/resource-id":"by-hand"}}}`)

		f.run(event{generation: 3})

		return f.get(f.configMap("two")).GetLabels()[adapter.LabelResourceID] == f.id
	})
}

// An event that is older than what this process has handled makes nothing anew.
func TestStaleEventsDoNotResurrect(t *testing.T) {
	t.Parallel()

	f := newFleet(t, simple())
	f.seen = resources.NewGenerations()

	f.want(event{generation: 5, value: "a"}, "create/Absent")
	f.want(event{generation: 6, deleting: true}, "delete/DeleteGate")
	f.want(event{generation: 5, value: "a"}, "none/Stale")
	f.want(event{generation: 6, deleting: true}, "none/NothingThere")
}

func TestViewHasLabels(t *testing.T) {
	t.Parallel()

	f := newFleet(t, simple("apply: !('x' in resources.config.metadata.labels) && !('x' in resources.config.metadata.annotations)"))

	must(t, env.Client.Create(t.Context(), f.configMap("web")))

	result := f.want(event{generation: 1, value: "a"}, "!none/NotManaged")

	shown, _ := result.Objects["config"].(map[string]any)
	if _, there, _ := unstructured.NestedMap(shown, "metadata", "labels"); !there {
		t.Errorf("no labels in %v", shown)
	}
}
