// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
)

func TestDetach(t *testing.T) {
	t.Parallel()

	detached := simple("detach: deleting && flag")

	for name, taskFile := range map[string]string{
		"by name": detached, "by labels": strings.Replace(detached, "by_name: web", ofResource, 1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			f := newFleet(t, taskFile)
			f.want(event{generation: 1, value: "a"}, "create/Absent")

			uid := f.get(f.configMap("web")).GetUID()

			// On a deletion, what was detached is gone to expressions: Finalized follows from
			// that, as it does after a deletion.
			f.absent(f.want(event{generation: 2, deleting: true, flag: true}, "detach/DetachGate"))

			left := f.get(f.configMap("web"))
			if len(left.GetLabels()) != 0 || left.GetUID() != uid ||
				cmp.Diff(map[string]string{adapter.AnnotationGeneration: "1", adapter.AnnotationDetached: adapterName}, left.GetAnnotations()) != "" {
				t.Errorf("left behind: labels %v, annotations %v", left.GetLabels(), left.GetAnnotations())
			}

			// Redelivered, and once more when the gate of delete alone is true.
			f.absent(f.want(event{generation: 2, deleting: true, flag: true}, "none/Detached"))
			f.absent(f.want(event{generation: 3, deleting: true}, "none/Detached"))

			if f.get(left).GetResourceVersion() != left.GetResourceVersion() {
				t.Error("a detached object was written")
			}
		})
	}
}

// A cache that is behind fails nothing, and holds up no end.
func TestWhatACacheSaysIsReadAgain(t *testing.T) {
	t.Parallel()

	f := newFleet(t, simple())
	f.want(event{generation: 1, value: "a"}, "create/Absent")

	live := f.get(f.configMap("web"))
	f.behind = live.DeepCopy()
	f.behind.SetLabels(map[string]string{adapter.LabelAdapter: "another"})
	f.behind.SetAnnotations(nil)
	f.want(event{generation: 1, value: "a"}, "none/GenerationUnchanged")

	must(t, env.Client.Delete(t.Context(), live.DeepCopy()))

	now := metav1.Now()
	f.behind = live.DeepCopy()
	f.behind.SetDeletionTimestamp(&now)
	f.task = load(t, entry("config", "web", "delete: deleting && flag"))
	f.want(event{generation: 1, value: "b"}, "create/Absent")
}

// Who may take a label off, or another program that stamps a generation alone, does not
// hand an object over by that.
func TestWithoutLabelAndMarkItIsNobodys(t *testing.T) {
	t.Parallel()

	for name, taskFile := range map[string]string{"by name": simple(), "by label": byLabel(simple())} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var said bytes.Buffer

			f := newFleet(t, taskFile)
			f.log = slog.New(slog.NewTextHandler(&said, nil))
			f.want(event{generation: 1, value: "a"}, "create/Absent")

			live := f.get(f.configMap("web"))
			live.SetLabels(map[string]string{"app": "web"})
			live.SetAnnotations(map[string]string{adapter.AnnotationGeneration: "1"})

			must(t, env.Client.Update(t.Context(), live))

			eventually(t, "it is nobody's", func() bool {
				return strings.Contains(fmt.Sprint(f.run(event{generation: 2, value: "b"}).Err()), "neither label")
			})

			if result := f.want(event{generation: 3, deleting: true}, "none/NotManaged"); result.Objects["config"] == nil {
				t.Error("what stays behind is hidden from expressions")
			}

			if !strings.Contains(said.String(), "level=WARN") {
				t.Errorf("no warning: %s", said.String())
			}
		})
	}
}

// absent checks that expressions see none of the objects.
func (f *fleet) absent(result resources.Result) {
	f.Helper()

	if len(result.Objects) > 0 {
		f.Errorf("expressions still see %v", result.Objects)
	}
}

// What labels find of somebody else's is passed over, and it is said so.
func TestWhatIsPassedOverIsSaid(t *testing.T) {
	t.Parallel()

	f := newFleet(t, byLabel(simple()))

	other := f.configMap("other")
	other.SetLabels(map[string]string{"app": "web", adapter.LabelAdapter: "another"})

	must(t, env.Client.Create(t.Context(), other))

	result := f.want(event{generation: 1, value: "a"}, "create/Absent")
	if got := result.Outcomes[0].Message; !strings.Contains(got, `other is ignored: it belongs to adapter "another"`) {
		t.Errorf("message %q", got)
	}
}
