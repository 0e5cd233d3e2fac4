// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

func TestDetach(t *testing.T) {
	t.Parallel()

	detached := newSimpleTask("detach: deleting && flag")

	for name, taskFile := range map[string]string{
		"by name": detached, "by labels": strings.Replace(detached, "by_name: web", ofResource, 1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t, taskFile)
			f.requireOutcomes(event{generation: 1, value: "a"}, "create/Absent")

			uid := f.getObject(f.newConfigMap("web")).GetUID()

			// After a deletion, expressions do not see the detached object, as if it were deleted, so that
			// they can report Finalized.
			f.requireAbsent(f.requireOutcomes(event{generation: 2, deleting: true, flag: true}, "detach/DetachGate"))

			left := f.getObject(f.newConfigMap("web"))
			annotations := left.GetAnnotations()
			delete(annotations, adapter.AnnotationIdentity) // the proof of the detachment

			if len(left.GetLabels()) != 0 || left.GetUID() != uid ||
				cmp.Diff(map[string]string{adapter.AnnotationGeneration: "1", adapter.AnnotationDetached: adapterName}, annotations) != "" {
				t.Errorf("detached object: labels %v, annotations %v", left.GetLabels(), left.GetAnnotations())
			}

			// The event is delivered again, and once more when only the delete gate is true.
			f.requireAbsent(f.requireOutcomes(event{generation: 2, deleting: true, flag: true}, "none/Detached"))
			f.requireAbsent(f.requireOutcomes(event{generation: 3, deleting: true}, "none/Detached"))

			if f.getObject(left).GetResourceVersion() != left.GetResourceVersion() {
				t.Error("a detached object was written")
			}
		})
	}
}

// If the cache has an old state, the event does not fail, and the deletion is completed.
func TestStaleCacheIsReadAgain(t *testing.T) {
	t.Parallel()

	f := newFixture(t, newSimpleTask())
	f.requireOutcomes(event{generation: 1, value: "a"}, "create/Absent")

	live := f.getObject(f.newConfigMap("web"))
	f.staleObject = live.DeepCopy()
	f.staleObject.SetLabels(map[string]string{adapter.LabelAdapter: "another"})
	f.staleObject.SetAnnotations(nil)
	f.requireOutcomes(event{generation: 1, value: "a"}, "none/GenerationUnchanged")

	must.Do(t, env.Client.Delete(t.Context(), live.DeepCopy()))

	now := metav1.Now()
	f.staleObject = live.DeepCopy()
	f.staleObject.SetDeletionTimestamp(&now)
	f.task = loadTask(t, newEntry("config", "web", "delete: deleting && flag"))
	f.requireOutcomes(event{generation: 1, value: "b"}, "create/Absent")
}

// If a user removes the labels, or another program sets the generation annotation, the object is not handed
// over.
func TestObjectsWithoutOwnershipRecordAreForeign(t *testing.T) {
	t.Parallel()

	for name, taskFile := range map[string]string{"by name": newSimpleTask(), "by label": findByLabel(newSimpleTask())} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFixture(t, taskFile)
			f.requireOutcomes(event{generation: 1, value: "a"}, "create/Absent")

			live := f.getObject(f.newConfigMap("web"))
			live.SetLabels(map[string]string{"app": "web"})
			live.SetAnnotations(map[string]string{adapter.AnnotationGeneration: "1"})

			must.Do(t, env.Client.Update(t.Context(), live))

			timing.WaitUntil(t, "the object counts as unowned", func() bool {
				return strings.Contains(fmt.Sprint(f.runEvent(event{generation: 2, value: "b"}).Err()), "neither label")
			})

			if result := f.requireOutcomes(event{generation: 3, deleting: true}, "!none/Unproven"); result.Objects["config"] == nil {
				t.Error("expressions do not see the object that is not handed over")
			}
		})
	}
}

// requireAbsent checks that expressions see no objects.
func (f *fixture) requireAbsent(result resources.Result) {
	f.Helper()

	if len(result.Objects) > 0 {
		f.Errorf("expressions still see %v", result.Objects)
	}
}

// Objects of others that the label selector finds are skipped, and a message reports it.
func TestSkippedObjectsAreReported(t *testing.T) {
	t.Parallel()

	f := newFixture(t, findByLabel(newSimpleTask()))

	other := f.newConfigMap("other")
	other.SetLabels(map[string]string{"app": "web", adapter.LabelAdapter: "another"})

	must.Do(t, env.Client.Create(t.Context(), other))

	result := f.requireOutcomes(event{generation: 1, value: "a"}, "create/Absent")
	if got := result.Outcomes[0].Message; !strings.Contains(got, `other is ignored: it belongs to adapter "another"`) {
		t.Errorf("message %q does not name the skipped object", got)
	}
}
