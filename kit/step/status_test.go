// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/kit/step"
)

const finalizer = "test.hyperfleet.io/cleanup"

func TestSaveWritesBeforeTheStepActs(t *testing.T) {
	t.Parallel()

	world, obj := newWorld(t, fresh())
	world.after(t, obj, func(ctx context.Context, w *widget) step.Result {
		w.Status.MachineID = "100"
		if err := step.SaveStatus(ctx); err != nil {
			return step.Fail(err)
		}

		if got := world.read(t).Status.MachineID; got != "100" {
			t.Errorf("machine id on the server is %q when the step acts, want 100", got)
		}

		return step.Done()
	})

	if got := world.read(t); !meta.IsStatusConditionTrue(got.Status.Conditions, step.Ready) || world.statusPatches != 2 {
		t.Errorf("status = %+v after %d patches", got.Status, world.statusPatches)
	}
}

// The reason of a step that deletes the object is recorded, although the deletion makes the copy of the
// object stale.
func TestSaveAsOutlivesTheDeletion(t *testing.T) {
	t.Parallel()

	kept := fresh()
	kept.Finalizers = []string{finalizer}
	world, obj := newWorld(t, kept)
	steps := []step.Step[*widget]{
		{Condition: "A", Run: says(step.Done())},
		{Condition: "B", Run: func(ctx context.Context, w *widget) step.Result {
			result := step.Wait(0, "TooLate", "its time is up")
			if err := errors.Join(step.SaveStatusWithResult(ctx, result), world.client.Delete(ctx, w)); err != nil {
				return step.Fail(err)
			}

			return result
		}},
		{Condition: "C", Run: says(step.Done())},
	}

	result, err := step.ReconcileSteps(t.Context(), world.runner, obj, steps, obj)
	if err != nil || !result.IsZero() {
		t.Errorf("Run() = %+v, %v", result, err)
	}

	got := world.read(t)
	if got.DeletionTimestamp == nil {
		t.Fatal("the object was not deleted")
	}

	for condition, want := range map[string]string{"B": "TooLate", "C": "Pending", step.Ready: "TooLate"} {
		if c := meta.FindStatusCondition(got.Status.Conditions, condition); c == nil || c.Reason != want {
			t.Errorf("%s is %+v, want %s", condition, c, want)
		}
	}
}

func TestSaveOutsideAStep(t *testing.T) {
	t.Parallel()

	for _, err := range []error{step.SaveStatus(t.Context()), step.SaveStatusWithResult(t.Context(), step.Done())} {
		if !errors.Is(err, step.ErrOutsideStep) {
			t.Errorf("saved: %v", err)
		}
	}
}

func TestAStaleCopyCannotSave(t *testing.T) {
	t.Parallel()

	world, obj := newWorld(t, fresh())
	world.somebodyWrites(t, "99")

	acted := false
	after := world.after(t, obj, func(ctx context.Context, w *widget) step.Result {
		w.Status.MachineID = "100"
		if err := step.SaveStatus(ctx); err != nil {
			return step.Fail(err)
		}

		acted = true

		return step.Done()
	})

	if after <= 0 || acted {
		t.Errorf("requeued after %s, acted %v; want a retry without an error", after, acted)
	}

	if got := world.read(t).Status.MachineID; got != "99" {
		t.Errorf("machine id = %q, want that of the other client", got)
	}
}

// writeAsOtherClient changes the machine of the widget as another client does.
func (w *world) somebodyWrites(t *testing.T, machine string) {
	t.Helper()

	other := w.read(t)
	other.Status.MachineID = machine

	if err := w.client.Status().Update(t.Context(), other); err != nil {
		t.Fatal(err)
	}
}

func deleted(t *testing.T, finalizers ...string) (*world, *widget) {
	t.Helper()

	w := fresh()
	w.Finalizers = finalizers
	now := metav1.NewTime(start)
	w.DeletionTimestamp = &now

	return newWorld(t, w)
}

func TestFinalizeLetsGoOnlyWhenEverythingIsDone(t *testing.T) {
	t.Parallel()

	world, obj := deleted(t, finalizer, "other")
	steps := make([]step.Step[*[]string], 1)

	for _, after := range []time.Duration{time.Second, 0} { // with and without a requeue
		steps[0] = returns("Destroyed", step.Wait(after, "Destroying", "VM 100 stops"))

		result, err := step.Finalize(t.Context(), world.runner, obj, finalizer, steps, new([]string))
		if err != nil || result.RequeueAfter != after || len(world.read(t).Finalizers) != 2 {
			t.Errorf("Finalize() = %v, %v with finalizers %v", result, err, world.read(t).Finalizers)
		}

		obj = world.read(t)
	}

	steps[0] = returns("Destroyed", step.Done())
	if _, err := step.Finalize(t.Context(), world.runner, world.read(t), finalizer, steps, new([]string)); err != nil {
		t.Fatal(err)
	}

	got := world.read(t)
	if len(got.Finalizers) != 1 || got.Finalizers[0] != "other" {
		t.Errorf("finalizers = %v", got.Finalizers)
	}

	if ready := meta.FindStatusCondition(got.Status.Conditions, step.Ready); ready.Status != metav1.ConditionFalse {
		t.Errorf("Ready = %v while the object is being deleted", ready)
	}

	patches := world.patches

	_, err := step.Finalize(t.Context(), world.runner, got, finalizer, steps, new([]string))
	if err != nil || world.patches != patches {
		t.Errorf("a second Finalize did something: %v", err)
	}
}

func TestFinalizeKeepsTheFinalizerWhenTheStatusCannotBeWritten(t *testing.T) {
	t.Parallel()

	world, obj := deleted(t, finalizer, "other")
	world.refuse = errBoom

	_, err := step.Finalize(t.Context(), world.runner, obj, finalizer,
		[]step.Step[*[]string]{returns("Destroyed", step.Done())}, new([]string))
	if !errors.Is(err, errBoom) || len(world.read(t).Finalizers) != 2 {
		t.Errorf("err = %v, finalizers = %v", err, world.read(t).Finalizers)
	}
}

func TestEnsureFinalizer(t *testing.T) {
	t.Parallel()

	world, obj := newWorld(t, fresh())

	for range 2 {
		if err := step.EnsureFinalizer(t.Context(), world.runner, obj, finalizer); err != nil {
			t.Fatal(err)
		}
	}

	if got := world.read(t).Finalizers; len(got) != 1 || got[0] != finalizer || world.patches != 1 {
		t.Errorf("finalizers = %v after %d patches", got, world.patches)
	}
}
