// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step_test

import (
	"bytes"
	"context"
	"strconv"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/step"
)

// newStep returns a step with the given result.
func newStep(result step.Result) func(context.Context, *widget) step.Result {
	return func(context.Context, *widget) step.Result { return result }
}

// newDeferredResult returns a result whose write may be deferred.
func newDeferredResult() step.Result { return step.Wait(time.Minute, "Creating", "x").DeferWrite() }

// The changes of a run with a deferred write are kept for the next run, and are written with later changes.
func TestDeferredWritesAreCombined(t *testing.T) {
	t.Parallel()

	fixture, obj := newFixture(t, newWidget())
	clk := clocktesting.NewFakePassiveClock(startTime)
	fixture.runner.Clock = clk
	found, reported := 0, 0
	run := func(obj *widget, result step.Result) time.Duration {
		t.Helper()

		return fixture.reconcileAndGetDelay(t, obj, func(ctx context.Context, w *widget) step.Result {
			if w.Status.MachineID == "" {
				step.OnNextSave(ctx, func() { reported++ })

				found++
				w.Status.MachineID = "100"
			}

			return result
		})
	}

	if after := run(obj, newDeferredResult()); after != 5*time.Second || fixture.statusPatches != 0 || reported != 0 {
		t.Errorf("requeued after %s with %d writes, reported %d times", after, fixture.statusPatches, reported)
	}

	clk.SetTime(startTime.Add(4 * time.Second))

	if after := run(fixture.getWidget(t), newDeferredResult()); after != time.Second || fixture.statusPatches != 0 || found != 1 {
		t.Errorf("requeued after %s with %d writes; found %d times", after, fixture.statusPatches, found)
	}

	run(fixture.getWidget(t), step.Done())

	if got := fixture.getWidget(t); got.Status.MachineID != "100" || fixture.statusPatches != 1 || reported != 1 {
		t.Errorf("machine %q after %d writes, reported %d times", got.Status.MachineID, fixture.statusPatches, reported)
	}

	// The delay has passed, so the changes are written.
	run(fixture.getWidget(t), newDeferredResult())
	clk.SetTime(startTime.Add(10 * time.Second))

	if after := run(fixture.getWidget(t), newDeferredResult()); after != time.Minute || fixture.statusPatches != 2 {
		t.Errorf("requeued after %s with %d writes", after, fixture.statusPatches)
	}
}

// A later run may shorten the time until the write, and a failed write keeps the changes and their callbacks.
func TestDeferredWriteWithAnotherLimit(t *testing.T) {
	t.Parallel()

	fixture, obj := newFixture(t, newWidget())
	clk := clocktesting.NewFakePassiveClock(startTime)
	fixture.runner.Clock = clk
	reported := 0
	run := func(obj *widget, at time.Duration, result step.Result) time.Duration {
		t.Helper()
		clk.SetTime(startTime.Add(at))

		return fixture.reconcileAndGetDelay(t, obj, func(ctx context.Context, w *widget) step.Result {
			if w.Status.MachineID == "" {
				w.Status.MachineID = "100"

				step.OnNextSave(ctx, func() { reported++ })
			}

			return result
		})
	}
	wait := step.Wait(time.Minute, "Creating", "x")

	if after := run(obj, 0, wait.DeferWriteFor(30*time.Second)); after != 30*time.Second {
		t.Errorf("requeued after %s, want 30s", after)
	}

	if after := run(fixture.getWidget(t), 10*time.Second, wait.DeferWrite()); after != 5*time.Second {
		t.Errorf("requeued after %s, want 5s", after)
	}

	if after := run(fixture.getWidget(t), 12*time.Second, wait.DeferWriteFor(30*time.Second)); after != 3*time.Second {
		t.Errorf("requeued after %s, want the 3s of the shorter limit", after)
	}

	if after := run(fixture.getWidget(t), 13*time.Second, wait.DeferWriteAtEnd()); after != 17*time.Second {
		t.Errorf("requeued after %s, want 30s after the first deferred change", after)
	}

	if fixture.statusPatches != 0 || reported != 0 {
		t.Errorf("%d writes, reported %d times before the limit", fixture.statusPatches, reported)
	}

	run(fixture.getWidget(t), 30*time.Second, wait.DeferWriteAtEnd())

	if fixture.statusPatches != 1 {
		t.Errorf("%d writes, want one after the limit", fixture.statusPatches)
	}

	run(fixture.getWidget(t), 31*time.Second, step.Done())

	if fixture.getWidget(t).Status.MachineID != "100" || reported != 1 {
		t.Errorf("reported %d times, want once", reported)
	}
}

// If many objects change at the same time, their changes stay longer in memory, so that the API server gets few writes
// of progress that later changes overwrite.
func TestDeferredWritesOfManyObjects(t *testing.T) {
	t.Parallel()

	fixture, obj := newFixture(t, newWidget())
	fixture.runner.Clock = clocktesting.NewFakePassiveClock(startTime)
	half := step.Wait(time.Minute, "Creating", "x").DeferWriteFor(30 * time.Second)
	count := 0

	for _, tc := range []struct {
		objects int
		result  step.Result
		want    time.Duration
	}{
		{1, newDeferredResult(), 5 * time.Second},
		{50, newDeferredResult(), 5 * time.Second},
		{60, newDeferredResult(), 6 * time.Second},
		{200, half, 30 * time.Second},
		{300, newDeferredResult(), 30 * time.Second},
		{400, half, 40 * time.Second},
		{1000, half, 50 * time.Second},
		{1001, newDeferredResult().DeferWriteAtEnd(), 50 * time.Second},
	} {
		var after time.Duration

		for ; count < tc.objects; count++ {
			other := &widget{ObjectMeta: *obj.DeepCopy(), Status: obj.Status}
			other.UID = types.UID(strconv.Itoa(count))
			after = fixture.reconcileAndGetDelay(t, other, newStep(tc.result))
		}

		if after != tc.want {
			t.Errorf("%d objects: requeued after %s, want %s", tc.objects, after, tc.want)
		}
	}
}

// If deferred changes are undone, nothing is written. After a restart of the operator, an object that becomes
// ready when its hypervisor is connected keeps the lastTransitionTime that the API server has.
func TestUndoneChangesAreNotWritten(t *testing.T) {
	t.Parallel()

	fixture, obj := newFixture(t, newWidget())
	clk := clocktesting.NewFakePassiveClock(startTime)
	fixture.runner.Clock = clk
	run := func(obj *widget, machine string, result step.Result) {
		t.Helper()
		fixture.reconcileAndGetDelay(t, obj, func(_ context.Context, w *widget) step.Result {
			if machine != "" {
				w.Status.MachineID = machine
			}

			return result
		})
	}

	run(obj, "1", step.Done())

	before := fixture.getWidget(t)
	fixture.runner = &step.Reconciler{Client: fixture.client, Controller: "widget", Clock: clk}

	clk.SetTime(startTime.Add(time.Hour))
	run(fixture.getWidget(t), "2", newDeferredResult())
	clk.SetTime(startTime.Add(time.Hour + time.Second))
	run(fixture.getWidget(t), "1", step.Done())

	seen := fixture.getWidget(t)
	run(seen, "", step.Done()) // the deferred object is not used, either

	if seen.Status.MachineID != "1" {
		t.Errorf("machine %q, want the deferred change to be undone", seen.Status.MachineID)
	}

	if after := fixture.getWidget(t); after.ResourceVersion != before.ResourceVersion {
		t.Errorf("%d writes, the last: %s", fixture.statusPatches, fixture.lastPatch)
	}
}

// An object from the cache has a kind and may lack managedFields. An object from a live read or a write has
// managedFields but no kind. A deferred object of one sort must not change these fields of the other sort,
// because the API server rejects such a patch.
func TestDeferredObjectKeepsKind(t *testing.T) {
	t.Parallel()

	fixture, live := newFixture(t, newWidget())
	live.TypeMeta = metav1.TypeMeta{}
	live.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "somebody", Operation: metav1.ManagedFieldsOperationUpdate}}
	fixture.reconcileAndGetDelay(t, live, newStep(newDeferredResult()))

	cached := fixture.getWidget(t)
	cached.TypeMeta = metav1.TypeMeta{APIVersion: "test.hyperfleet.io/v1", Kind: "widget"}
	cached.ManagedFields = nil
	fixture.reconcileAndGetDelay(t, cached, newStep(step.Done()))

	if fixture.statusPatches != 1 || bytes.Contains(fixture.lastPatch, []byte(`"kind"`)) ||
		bytes.Contains(fixture.lastPatch, []byte("somebody")) {
		t.Errorf("%d writes, the last: %s", fixture.statusPatches, fixture.lastPatch)
	}
}

// A run with a callback for OnSaved or OnTransition is written immediately, even if its result defers the write.
func TestCallbacksWriteImmediately(t *testing.T) {
	t.Parallel()

	fixture, obj := newFixture(t, newWidget())
	reported := false
	after := fixture.reconcileAndGetDelay(t, obj, func(ctx context.Context, _ *widget) step.Result {
		step.OnSaved(ctx, func() { reported = true })

		return newDeferredResult()
	})

	if after != time.Minute || !reported || fixture.statusPatches != 1 {
		t.Errorf("requeued after %s; reported %v after %d writes", after, reported, fixture.statusPatches)
	}
}

// If another client writes the object, the deferred changes are dropped and observed again.
func TestDeferredChangesOfOldVersionAreDropped(t *testing.T) {
	t.Parallel()

	fixture, obj := newFixture(t, newWidget())
	finds := func(_ context.Context, w *widget) step.Result {
		w.Status.MachineID += "1"

		return newDeferredResult()
	}

	fixture.reconcileAndGetDelay(t, obj, finds)
	fixture.writeAsOtherClient(t, "9")

	seen := fixture.getWidget(t)
	fixture.reconcileAndGetDelay(t, seen, finds)

	if seen.Status.MachineID != "91" {
		t.Errorf("machine %q, want that of the other client and one more", seen.Status.MachineID)
	}
}

// If another client changes only the metadata, for example with a deletion, the deferred changes are kept.
func TestDeferredChangesSurviveChangesOfMetadata(t *testing.T) {
	t.Parallel()

	fixture, obj := newFixture(t, newWidget())
	reported := 0

	fixture.reconcileAndGetDelay(t, obj, func(ctx context.Context, w *widget) step.Result {
		w.Status.MachineID = "1"

		step.OnNextSave(ctx, func() { reported++ })

		return newDeferredResult()
	})

	seen := fixture.getWidget(t)
	seen.Annotations = map[string]string{"by": "another client"}

	if err := fixture.client.Update(t.Context(), seen); err != nil {
		t.Fatal(err)
	}

	fixture.reconcileAndGetDelay(t, fixture.getWidget(t), newStep(step.Done()))

	got := fixture.getWidget(t)
	if got.Status.MachineID != "1" || got.Annotations["by"] == "" || reported != 1 || fixture.statusPatches != 1 {
		t.Errorf("machine %q, annotations %v, reported %d times in %d writes",
			got.Status.MachineID, got.Annotations, reported, fixture.statusPatches)
	}
}

// A step can read what the API server has, without the changes of this run and deferred ones.
func TestSavedObject(t *testing.T) {
	t.Parallel()

	fixture, obj := newFixture(t, newWidget())
	getSaved := func(ctx context.Context) string {
		w, ok := step.SavedObject(ctx).(*widget)
		if !ok {
			t.Fatal("no saved object")
		}

		return w.Status.MachineID
	}

	fixture.reconcileAndGetDelay(t, obj, func(_ context.Context, w *widget) step.Result {
		w.Status.MachineID = "1"

		return newDeferredResult()
	})

	var before, after string

	fixture.reconcileAndGetDelay(t, fixture.getWidget(t), func(ctx context.Context, _ *widget) step.Result {
		before = getSaved(ctx)

		if err := step.SaveStatus(ctx); err != nil {
			t.Error(err)
		}

		after = getSaved(ctx)

		return step.Done()
	})

	if before != "" || after != "1" || step.SavedObject(t.Context()) != nil {
		t.Errorf("saved machine %q before the write and %q after it", before, after)
	}
}

// An object that is older than this process's last write is not reconciled, so no call is made and no write
// fails. If the API server was restored from a backup and never has the write, the object is reconciled again
// after a while.
func TestStaleCopyIsNotReconciled(t *testing.T) {
	t.Parallel()

	fixture, obj := newFixture(t, newWidget())
	stale, restored := fixture.getWidget(t), fixture.getWidget(t)
	clk := clocktesting.NewFakePassiveClock(startTime)
	fixture.runner.Clock = clk
	runs := 0
	counts := func(context.Context, *widget) step.Result {
		runs++

		return step.Done()
	}

	fixture.reconcileAndGetDelay(t, obj, counts)

	for range 2 {
		if after := fixture.reconcileAndGetDelay(t, stale, counts); after <= 0 || runs != 1 {
			t.Errorf("a stale copy is requeued after %s, with %d runs", after, runs)
		}
	}

	fixture.reconcileAndGetDelay(t, fixture.getWidget(t), counts)

	if runs != 2 {
		t.Errorf("the current copy was not reconciled: %d runs", runs)
	}

	other, obj := newFixture(t, newWidget())
	other.runner.Clock = clk
	other.reconcileAndGetDelay(t, obj, counts)
	clk.SetTime(clk.Now().Add(time.Minute))

	other.reconcileAndGetDelay(t, restored, counts)

	if runs != 4 {
		t.Errorf("%d runs, want one for the restored copy", runs)
	}
}

// If no other finalizer keeps an object, its status is not written before the finalizer is removed.
func TestLastFinalizerWritesNoStatus(t *testing.T) {
	t.Parallel()

	fixture, obj := newDeletedWidget(t, finalizer)
	reported := 0
	steps := []step.Step[*widget]{{Condition: "Gone", Run: func(ctx context.Context, _ *widget) step.Result {
		step.OnSaved(ctx, func() { reported++ })
		step.OnFinalized(ctx, func() { reported++ })

		return step.Done()
	}}}

	_, err := step.Finalize(t.Context(), fixture.runner, obj, finalizer, steps, obj)
	if err != nil || fixture.statusPatches != 0 || reported != 2 {
		t.Errorf("Finalize() = %v after %d writes of the status, reported %d times", err, fixture.statusPatches, reported)
	}

	if got := meta.FindStatusCondition(obj.Status.Conditions, "Gone"); got != nil && got.Reason == "" {
		t.Errorf("condition %+v", got)
	}

	if err := fixture.client.Get(t.Context(), client.ObjectKeyFromObject(obj), &widget{}); !apierrors.IsNotFound(err) {
		t.Errorf("get = %v, want not found", err)
	}
}
