// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/hyperfleet/hyperfleet/kit/step"
)

var startTime = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// widget is a custom resource as the API packages define them.
type widget struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Status widgetStatus `json:"status"`
}

type widgetStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	MachineID          string             `json:"machineID,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

func (w *widget) StatusConditions() *[]metav1.Condition { return &w.Status.Conditions }

func (w *widget) SetObservedGeneration(generation int64) { w.Status.ObservedGeneration = generation }

func (w *widget) DeepCopyObject() runtime.Object {
	out := &widget{TypeMeta: w.TypeMeta, Status: w.Status}
	w.DeepCopyInto(&out.ObjectMeta)
	out.Status.Conditions = append([]metav1.Condition(nil), w.Status.Conditions...)

	return out
}

// fixture is an API server with one widget, which counts and can reject writes, and a controller.
type fixture struct {
	runner        *step.Reconciler
	client        client.Client
	statusPatches int
	// lastPatch is the last patch.
	lastPatch  []byte
	patches    int
	patchError error
	// If patchHangs is true, patches of the status end with their context.
	patchHangs bool
	// unknownField is a field of the status that the CRD lacks.
	unknownField string
}

func newFixture(t *testing.T, w *widget) (*fixture, *widget) {
	t.Helper()

	group := schema.GroupVersion{Group: "test.hyperfleet.io", Version: "v1"}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(group, &widget{})
	metav1.AddToGroupVersion(scheme, group)

	out := &fixture{}
	out.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(w).WithStatusSubresource(&widget{}).
		WithInterceptorFuncs(interceptor.Funcs{
			SubResourcePatch: func(
				ctx context.Context, c client.Client, sub string, obj client.Object,
				patch client.Patch, opts ...client.SubResourcePatchOption,
			) error {
				out.statusPatches++
				out.lastPatch, _ = patch.Data(obj)

				if out.patchHangs {
					<-ctx.Done()

					return ctx.Err()
				}

				if out.patchError != nil {
					return out.patchError
				}

				options := (&client.SubResourcePatchOptions{}).ApplyOptions(opts)
				if out.unknownField != "" && options.FieldValidation == metav1.FieldValidationStrict &&
					bytes.Contains(out.lastPatch, []byte(`"`+out.unknownField+`":`)) {
					return apierrors.NewBadRequest(`strict decoding error: unknown field "status.` + out.unknownField + `"`)
				}

				return c.SubResource(sub).Patch(ctx, obj, patch, opts...)
			},
			Patch: func(
				ctx context.Context, c client.WithWatch, obj client.Object,
				patch client.Patch, opts ...client.PatchOption,
			) error {
				out.patches++

				return c.Patch(ctx, obj, patch, opts...)
			},
		}).Build()

	out.runner = &step.Reconciler{Client: out.client, Controller: "widget"}

	obj := out.getWidget(t)

	return out, obj
}

// reconcileStep reconciles an object with one step and returns the error.
func (w *fixture) reconcileStep(
	ctx context.Context, obj *widget, run func(context.Context, *widget) step.Result,
) (ctrl.Result, error) {
	return step.ReconcileSteps(ctx, w.runner, obj, []step.Step[*widget]{{Condition: "A", Run: run}}, obj)
}

// reconcileAndGetDelay reconciles without an error and returns the time after which the object is requeued.
func (w *fixture) reconcileAndGetDelay(t *testing.T, obj *widget, run func(context.Context, *widget) step.Result) time.Duration {
	t.Helper()

	result, err := w.reconcileStep(t.Context(), obj, run)
	if err != nil {
		t.Fatal(err)
	}

	return result.RequeueAfter
}

// runSteps runs a list of steps for an object and returns the names of the steps that ran.
func (w *fixture) runSteps(t *testing.T, obj *widget, list ...step.Step[*[]string]) ([]string, ctrl.Result, error) {
	t.Helper()

	var ran []string

	result, err := step.ReconcileSteps(t.Context(), w.runner, obj, list, &ran)

	return ran, result, err
}

// getWidget gets the widget from the server.
func (w *fixture) getWidget(t *testing.T) *widget {
	t.Helper()

	got := &widget{}
	if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: "ci", Name: "w"}, got); err != nil {
		t.Fatal(err)
	}

	return got
}

func newWidget() *widget {
	return &widget{ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "w", Generation: 3, UID: "u-1"}}
}
