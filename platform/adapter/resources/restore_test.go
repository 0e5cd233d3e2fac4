// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
)

// newLoggingFixture returns a fixture that reads live, and the log lines of its runs.
func newLoggingFixture(t *testing.T, taskFile string) (*fixture, *bytes.Buffer) {
	t.Helper()

	logs := &bytes.Buffer{}
	f := newFixture(t, taskFile)
	f.log, f.readLive = slog.New(slog.NewTextHandler(logs, nil)), true

	return f, logs
}

// restore sets the generation in the API to an earlier one, as a restored database has it.
func (f *fixture) restore(generation int64) { f.generation.Store(generation) }

// After the database was restored, objects are newer than the resource, or have its generation with another content.
func TestRestoredDatabase(t *testing.T) {
	t.Parallel()

	for name, serials := range map[string]string{"by name": newSimpleTask(), "retention": newRetentionTask("{historyLimit: 5}")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f, logs := newLoggingFixture(t, serials)
			f.seen = resources.NewGenerations()
			current := func(result resources.Result) string {
				object, _ := result.Objects[f.task.Resources[0].Name].(map[string]any)
				value, _, _ := unstructured.NestedString(object, "data", "value")

				return value
			}

			for generation := int64(4); generation <= 7; generation++ {
				f.runEvent(event{generation: generation, value: fmt.Sprint("lost-", generation), serial: fmt.Sprint("lost-", generation)})
			}

			// Each generation of the restored resource has its own content, up to the generation that the object has.
			for generation := int64(4); generation <= 8; generation++ {
				f.restore(generation)

				e := event{generation: generation, value: fmt.Sprint("new-", generation), serial: fmt.Sprint("new-", generation)}

				result := f.runEvent(e)
				if out := result.Outcomes[0]; out.Err != nil || current(result) != e.value || out.Operation == resources.None {
					t.Fatalf("generation %d: %v, content %q, %v", generation, formatOutcomes(result), current(result), result.Err())
				}

				f.requireOutcomes(e, "none/GenerationUnchanged")
			}

			if got := strings.Count(logs.String(), "level=WARN"); got == 0 || got > 5 {
				t.Errorf("%d warnings:\n%s", got, logs)
			}
		})
	}
}

// A ManifestWork, and the manifests in it, get the content and the generation of the restored resource.
func TestRestoredManifestWork(t *testing.T) {
	t.Parallel()

	f, logs := newLoggingFixture(t, nestedTask)
	f.readLive = false

	for generation := int64(1); generation <= 3; generation++ {
		f.runEvent(event{generation: generation, value: "lost", serial: "home"})
	}

	f.restore(3)
	f.requireOutcomes(event{generation: 3, value: "caught up", serial: "home"}, "apply/ContentChanged", "none/ApplyWhenFalse")
	f.restore(2)
	f.requireOutcomes(event{generation: 2, value: "behind", serial: "home"}, "apply/ContentChanged", "none/ApplyWhenFalse")

	work := f.newWork()
	if diff := cmp.Diff([]string{"web=2"}, listNestedGenerations(t, work)); diff != "" || !strings.Contains(fmt.Sprint(work.Object["spec"]), "value:behind") {
		t.Errorf("generations %s, spec %v", diff, work.Object["spec"])
	}

	if !strings.Contains(logs.String(), "level=WARN") {
		t.Errorf("no warning: %s", logs)
	}
}

// A version of a lost generation can have the name that the generation gives again.
func TestNameOfALostVersion(t *testing.T) {
	t.Parallel()

	f, _ := newLoggingFixture(t, newRetentionTask("{historyLimit: 5}"))

	for generation := int64(1); generation <= 3; generation++ {
		f.runEvent(event{generation: generation, value: "lost", serial: strconv.FormatInt(generation, 10)})
	}

	f.restore(1)
	f.requireOutcomes(event{generation: 1, value: "new", serial: "1"}, "apply/ContentChanged")
	f.restore(2)
	f.requireOutcomes(event{generation: 2, value: "new", serial: "2"}, "apply/ContentChanged")
	f.requireOutcomes(event{generation: 2, value: "new", serial: "2"}, "none/GenerationUnchanged")

	if f.getData("job-2")["value"] != "new" || f.getData("job-3")["value"] != "lost" {
		t.Errorf("contents %v, %v", f.getData("job-2"), f.getData("job-3"))
	}
}

// An event that is older than the resource in the API stays stale, whatever the object says.
func TestStaleEventIsDecidedByTheAPI(t *testing.T) {
	t.Parallel()

	f, _ := newLoggingFixture(t, newSimpleTask())
	f.requireOutcomes(event{generation: 3, value: "new"}, "create/Absent")
	f.requireOutcomes(event{generation: 2, value: "old"}, "none/Stale")

	// The API has lost the generation of the event.
	f.restore(1)
	f.requireOutcomes(event{generation: 3, value: "lost"}, "apply/ContentChanged")

	in := f.newInput(event{generation: 2, value: "x"})
	in.ReadGeneration = func(context.Context) (int64, error) { return 0, errors.New("the API is down") }

	result, err := resources.Run(t.Context(), in)
	if got := formatOutcomes(result); err != nil || got[0] != "!none/DiscoveryFailed" {
		t.Errorf("without the API: %v, %v", got, err)
	}
}

// Edited marks are repaired if the object's identity is proven, and the content is that of the API.
func TestEditedMarksAreRepaired(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct{ patch, reason string }{
		"a later generation":   {`{"metadata":{"annotations":{"hyperfleet.io/generation":"50"}}}`, "ContentChanged"},
		"the next generation":  {`{"metadata":{"annotations":{"hyperfleet.io/generation":"2"}}}`, "ContentChanged"},
		"no generation":        {`{"metadata":{"annotations":{"hyperfleet.io/generation":null}}}`, "GenerationChanged"},
		"no adapter":           {`{"metadata":{"labels":{"hyperfleet.io/adapter":null}}}`, "GenerationChanged"},
		"another resource":     {`{"metadata":{"labels":{"hyperfleet.io/resource-id":"x"}}}`, "GenerationChanged"},
		"detached":             {`{"metadata":{"annotations":{"hyperfleet.io/detached":"dns"}}}`, "GenerationChanged"},
		"detached, no adapter": {`{"metadata":{"labels":{"hyperfleet.io/adapter":null},"annotations":{"hyperfleet.io/detached":"dns"}}}`, "GenerationChanged"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f, logs := newLoggingFixture(t, newSimpleTask())
			f.requireOutcomes(event{generation: 1, value: "a"}, "create/Absent")

			applied := f.getObject(f.newConfigMap("web"))
			f.patchByHand(f.newConfigMap("web"), tc.patch)

			f.requireOutcomes(event{generation: 2, value: "b"}, "apply/"+tc.reason)

			if f.getData("web")["value"] != "b" || strings.Count(logs.String(), "level=WARN") != 1 {
				t.Errorf("content %v, logs:\n%s", f.getData("web"), logs)
			}

			repaired := f.getObject(f.newConfigMap("web"))
			if diff := cmp.Diff(applied.GetLabels(), repaired.GetLabels()); diff != "" || repaired.GetAnnotations()[adapter.AnnotationDetached] != "" {
				t.Errorf("labels %s, annotations %v", diff, repaired.GetAnnotations())
			}

			// The resource is deleted, and so is the object, whatever its marks say.
			f.patchByHand(f.newConfigMap("web"), tc.patch)
			f.requireOutcomes(event{generation: 3, deleting: true}, "delete/DeleteGate")

			if f.getObject(f.newConfigMap("web")) != nil {
				t.Error("the object stays")
			}
		})
	}
}

// If nothing proves whose object it is, the entry fails, also while the resource is being deleted. The deletion would
// end otherwise, and the object would stay.
func TestUnprovenObjectsFail(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct{ patch, reason string }{
		"no identity":              {`{"metadata":{"annotations":{"hyperfleet.io/identity":null}}}`, "Unproven"},
		"no adapter, no identity":  {`{"metadata":{"labels":{"hyperfleet.io/adapter":null},"annotations":{"hyperfleet.io/identity":null}}}`, "Unproven"},
		"detached without a proof": {`{"metadata":{"labels":{"hyperfleet.io/adapter":null},"annotations":{"hyperfleet.io/identity":null,"hyperfleet.io/detached":"dns"}}}`, "Detached"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f, _ := newLoggingFixture(t, newSimpleTask("detach: flag"))
			f.requireOutcomes(event{generation: 1, value: "a"}, "create/Absent")
			f.patchByHand(f.newConfigMap("web"), tc.patch)

			f.requireOutcomes(event{generation: 1, value: "a"}, "!none/"+tc.reason)
			f.requireOutcomes(event{generation: 2, value: "b"}, "!none/"+tc.reason)
			f.requireOutcomes(event{generation: 3, deleting: true}, "!none/"+tc.reason)

			if f.getData("web")["value"] != "a" {
				t.Error("the object was written")
			}

			// An object that an earlier release has detached has no proof. Its gate is enough.
			if tc.reason == "Detached" {
				f.requireOutcomes(event{generation: 3, deleting: true, flag: true}, "none/Detached")
			}
		})
	}
}

// A detached object counts as success only for the resource that it was detached for, and only while its gate is true
// or the resource is being deleted.
func TestDetachedObjectIsNoSuccessByItself(t *testing.T) {
	t.Parallel()

	f, _ := newLoggingFixture(t, newSimpleTask("detach: flag"))
	f.requireOutcomes(event{generation: 1, value: "a"}, "create/Absent")
	f.requireOutcomes(event{generation: 2, flag: true}, "detach/DetachGate")
	f.requireOutcomes(event{generation: 2, flag: true}, "none/Detached")
	f.requireOutcomes(event{generation: 3, value: "b"}, "!none/Detached")
	f.requireOutcomes(event{generation: 4, deleting: true}, "none/Detached")

	// A new resource of the same name has another ID.
	f.id = "0199f1c8-6d52-7b1c-9d0e-0a7d2f3b4c5d"
	f.requireOutcomes(event{generation: 4, value: "c"}, "!none/Detached")
}

// An object of a resource that a restored database no longer has stays the object of that resource, and the error says
// what deletes it.
func TestSameNameWithAnotherID(t *testing.T) {
	t.Parallel()

	f, _ := newLoggingFixture(t, newSimpleTask())
	f.requireOutcomes(event{generation: 1, value: "lost"}, "create/Absent")

	f.id = "0199f1c8-6d52-7b1c-9d0e-0a7d2f3b4c5d"

	result := f.requireOutcomes(event{generation: 1, value: "new"}, "!none/NotManaged")
	if !strings.Contains(result.Err().Error(), "hyperfleet-platform sweep deletes the object") || f.getData("web")["value"] != "lost" {
		t.Errorf("%v, content %v", result.Err(), f.getData("web"))
	}
}

// An object of a release that signed only the owner is applied once more, and then its content is proven. A version
// of a retention is not created again.
func TestObjectsOfEarlierReleasesAreTakenOver(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct{ task, object, first string }{
		"by name":   {newSimpleTask(), "web", "apply/ContentChanged"},
		"retention": {newRetentionTask("{historyLimit: 5}"), "job-a", "none/GenerationUnchanged"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f, _ := newLoggingFixture(t, tc.task)
			f.requireOutcomes(event{generation: 1, value: "a", serial: "a"}, "create/Absent")
			f.patchByHand(f.newConfigMap(tc.object), `{"metadata":{"annotations":{"hyperfleet.io/identity":"`+f.signAsBefore(tc.object)+`"}}}`)

			f.requireOutcomes(event{generation: 1, value: "a", serial: "b"}, tc.first)
			f.requireOutcomes(event{generation: 1, value: "a", serial: "b"}, "none/GenerationUnchanged")

			if got := f.getObject(f.newConfigMap(tc.object)).GetAnnotations()[adapter.AnnotationIdentity]; !strings.HasPrefix(got, "v2.") {
				t.Errorf("identity %s", got)
			}

			if names := f.listNames("ConfigMap"); len(names) != 1 {
				t.Errorf("objects %v", names)
			}
		})
	}
}

// A template that reads the clock does not change the content.
func TestClockIsNoContent(t *testing.T) {
	t.Parallel()

	for _, now := range []string{"{{ .now }}", "{{ now }}"} {
		f, _ := newLoggingFixture(t, strings.Replace(newSimpleTask(), "      data: {", `      data: {now: "`+now+`", `, 1))
		f.requireOutcomes(event{generation: 1, value: "a"}, "create/Absent")

		made := f.getData("web")["now"]
		f.requireOutcomes(event{generation: 1, value: "a"}, "none/GenerationUnchanged")
		f.requireOutcomes(event{generation: 1, value: "b"}, "apply/ContentChanged")

		if made == "" || strings.Contains(made, "0001-01-01") {
			t.Errorf("the object has the time %q", made)
		}
	}
}

// A gate can leave an object as it is. The outcome says that it does not have the content of the manifest.
func TestSkippedObjectsAreOutdated(t *testing.T) {
	t.Parallel()

	f, _ := newLoggingFixture(t, newEntry("config", "web", "when: !flag", "apply: value != 'b'"))

	for _, step := range []struct {
		event    event
		outcome  string
		outdated bool
	}{
		{event{generation: 1, value: "b"}, "none/ApplyWhenFalse", false},
		{event{generation: 1, value: "a"}, "create/Absent", false},
		{event{generation: 1, value: "a", flag: true}, "none/WhenFalse", false},
		{event{generation: 2, value: "a", flag: true}, "none/WhenFalse", true},
		{event{generation: 2, value: "b"}, "none/ApplyWhenFalse", true},
		{event{generation: 2, value: "c"}, "apply/GenerationChanged", false},
	} {
		if result := f.requireOutcomes(step.event, step.outcome); result.Outcomes[0].Outdated != step.outdated {
			t.Errorf("event %+v: outdated is %v", step.event, result.Outcomes[0].Outdated)
		}
	}
}

// signAsBefore returns the identity of a ConfigMap as releases before v2 signed it.
func (f *fixture) signAsBefore(name string) string {
	key := strings.Repeat("k", 32)
	keyID := sha256.Sum256([]byte("hyperfleet.io/identity key " + key))
	sum := hmac.New(sha256.New, []byte(key))

	for _, field := range []string{"hyperfleet.io/identity", "v1", adapterName, f.id, "", "ConfigMap", f.ns, name} {
		sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(field))))
		sum.Write([]byte(field))
	}

	return "v1." + hex.EncodeToString(keyID[:])[:8] + "." + base64.RawURLEncoding.EncodeToString(sum.Sum(nil))
}
