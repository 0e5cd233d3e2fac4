// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

const finalizer = "test.hyperfleet.io/cleanup"

func TestSaveWritesBeforeTheStepActs(t *testing.T) {
	t.Parallel()

	fixture, obj := newFixture(t, newWidget())
	fixture.reconcileAndGetDelay(t, obj, func(ctx context.Context, w *widget) step.Result {
		w.Status.MachineID = "100"
		if err := step.SaveStatus(ctx); err != nil {
			return step.Fail(err)
		}

		if got := fixture.getWidget(t).Status.MachineID; got != "100" {
			t.Errorf("machine id on the server is %q when the step acts, want 100", got)
		}

		return step.Done()
	})

	if got := fixture.getWidget(t); !meta.IsStatusConditionTrue(got.Status.Conditions, step.Ready) || fixture.statusPatches != 2 {
		t.Errorf("status = %+v after %d patches", got.Status, fixture.statusPatches)
	}
}

// The reason of a step that deletes the object is recorded, although the deletion makes the copy of the
// object stale.
func TestSaveBeforeDeletion(t *testing.T) {
	t.Parallel()

	kept := newWidget()
	kept.Finalizers = []string{finalizer}
	fixture, obj := newFixture(t, kept)
	steps := []step.Step[*widget]{
		{Condition: "A", Run: newStep(step.Done())},
		{Condition: "B", Run: func(ctx context.Context, w *widget) step.Result {
			result := step.Wait(0, "TooLate", "its time is up")
			if err := errors.Join(step.SaveStatusWithResult(ctx, result), fixture.client.Delete(ctx, w)); err != nil {
				return step.Fail(err)
			}

			return result
		}},
		{Condition: "C", Run: newStep(step.Done())},
	}

	result, err := step.ReconcileSteps(t.Context(), fixture.runner, obj, steps, obj)
	if err != nil || !result.IsZero() {
		t.Errorf("Run() = %+v, %v", result, err)
	}

	got := fixture.getWidget(t)
	if got.DeletionTimestamp == nil {
		t.Fatal("the object was not deleted")
	}

	for condition, want := range map[string]string{"B": "TooLate", "C": "Pending", step.Ready: "TooLate"} {
		if c := meta.FindStatusCondition(got.Status.Conditions, condition); c == nil || c.Reason != want {
			t.Errorf("%s is %+v, want %s", condition, c, want)
		}
	}
}

// If the CRD lacks a field, the step must not act, and the conditions say what is missing.
func TestSaveWithOutdatedCRD(t *testing.T) {
	t.Parallel()

	fixture, _ := newFixture(t, newWidget())
	fixture.unknownField = "machineID"
	acted := false

	run := func(inStep bool) func(ctx context.Context, w *widget) step.Result {
		return func(ctx context.Context, w *widget) step.Result {
			w.Status.MachineID = "100"

			if inStep {
				if err := step.SaveStatus(ctx); err != nil {
					return step.Fail(err)
				}

				acted = true
			}

			return step.Done()
		}
	}

	for _, inStep := range []bool{true, false} {
		obj := fixture.getWidget(t)
		if delay := fixture.reconcileAndGetDelay(t, obj, run(inStep)); delay <= 0 || delay > time.Minute {
			t.Errorf("in a step: %v: the object is requeued after %s", inStep, delay)
		}

		got := fixture.getWidget(t)
		for _, condition := range []string{"A", step.Ready} {
			c := meta.FindStatusCondition(got.Status.Conditions, condition)
			if c == nil || c.Status != metav1.ConditionFalse || c.Reason != step.ReasonCRDOutdated ||
				!strings.Contains(c.Message, "the CRD of widget is older than the operator and lacks status.machineID: run `kubectl apply") {
				t.Errorf("in a step: %v: condition %s is %+v", inStep, condition, c)
			}
		}
	}

	if acted {
		t.Error("the step acted although its status was not written")
	}

	fixture.unknownField = ""
	fixture.reconcileAndGetDelay(t, fixture.getWidget(t), run(true))

	if got := fixture.getWidget(t); got.Status.MachineID != "100" || !step.IsReady(got) {
		t.Errorf("after the CRD was applied: %+v", got.Status)
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

func TestStaleCopyCannotSave(t *testing.T) {
	t.Parallel()

	fixture, obj := newFixture(t, newWidget())
	fixture.writeAsOtherClient(t, "99")

	acted := false
	after := fixture.reconcileAndGetDelay(t, obj, func(ctx context.Context, w *widget) step.Result {
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

	if got := fixture.getWidget(t).Status.MachineID; got != "99" {
		t.Errorf("machine id = %q, want that of the other client", got)
	}
}

// writeAsOtherClient changes the machine of the widget as another client does.
func (w *fixture) writeAsOtherClient(t *testing.T, machine string) {
	t.Helper()

	other := w.getWidget(t)
	other.Status.MachineID = machine

	if err := w.client.Status().Update(t.Context(), other); err != nil {
		t.Fatal(err)
	}
}

func newDeletedWidget(t *testing.T, finalizers ...string) (*fixture, *widget) {
	t.Helper()

	w := newWidget()
	w.Finalizers = finalizers
	now := metav1.NewTime(startTime)
	w.DeletionTimestamp = &now

	return newFixture(t, w)
}

func TestFinalizeRemovesFinalizerLast(t *testing.T) {
	t.Parallel()

	fixture, obj := newDeletedWidget(t, finalizer, "other")
	steps := make([]step.Step[*[]string], 1)

	for _, after := range []time.Duration{time.Second, 0} { // with and without a requeue
		steps[0] = newRecordingStep("Destroyed", step.Wait(after, "Destroying", "VM 100 stops"))

		result, err := step.Finalize(t.Context(), fixture.runner, obj, finalizer, steps, new([]string))
		if err != nil || result.RequeueAfter != after || len(fixture.getWidget(t).Finalizers) != 2 {
			t.Errorf("Finalize() = %v, %v with finalizers %v", result, err, fixture.getWidget(t).Finalizers)
		}

		obj = fixture.getWidget(t)
	}

	steps[0] = newRecordingStep("Destroyed", step.Done())
	if _, err := step.Finalize(t.Context(), fixture.runner, fixture.getWidget(t), finalizer, steps, new([]string)); err != nil {
		t.Fatal(err)
	}

	got := fixture.getWidget(t)
	if len(got.Finalizers) != 1 || got.Finalizers[0] != "other" {
		t.Errorf("finalizers = %v", got.Finalizers)
	}

	if ready := meta.FindStatusCondition(got.Status.Conditions, step.Ready); ready.Status != metav1.ConditionFalse {
		t.Errorf("Ready = %v while the object is being deleted", ready)
	}

	patches := fixture.patches

	_, err := step.Finalize(t.Context(), fixture.runner, got, finalizer, steps, new([]string))
	if err != nil || fixture.patches != patches {
		t.Errorf("a second Finalize did something: %v", err)
	}
}

func TestFinalizeKeepsFinalizerIfWriteFails(t *testing.T) {
	t.Parallel()

	fixture, obj := newDeletedWidget(t, finalizer, "other")
	fixture.patchError = errBoom

	_, err := step.Finalize(t.Context(), fixture.runner, obj, finalizer,
		[]step.Step[*[]string]{newRecordingStep("Destroyed", step.Done())}, new([]string))
	if !errors.Is(err, errBoom) || len(fixture.getWidget(t).Finalizers) != 2 {
		t.Errorf("err = %v, finalizers = %v", err, fixture.getWidget(t).Finalizers)
	}
}

func TestEnsureFinalizer(t *testing.T) {
	t.Parallel()

	fixture, obj := newFixture(t, newWidget())

	for range 2 {
		if err := step.EnsureFinalizer(t.Context(), fixture.runner, obj, finalizer); err != nil {
			t.Fatal(err)
		}
	}

	if got := fixture.getWidget(t).Finalizers; len(got) != 1 || got[0] != finalizer || fixture.patches != 1 {
		t.Errorf("finalizers = %v after %d patches", got, fixture.patches)
	}
}

// A run that is stopped while the API server does not respond ends before the operator gives up waiting for it.
func TestSaveEndsSoonAfterTheRun(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		fixture, obj := newFixture(t, newWidget())
		fixture.patchHangs = true

		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, stop)

		start := time.Now()
		_, err := step.ReconcileSteps(ctx, fixture.runner, obj, []step.Step[*widget]{{Condition: "A", Run: newStep(step.Done())}}, obj)

		if took := time.Since(start); err == nil || took > time.Second+retry.EndGrace {
			t.Errorf("the run ended after %s with error %v, want an error at most %s after it was stopped", took, err, retry.EndGrace)
		}
	})
}
