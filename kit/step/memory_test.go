// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/step"
)

// newStep returns a step with the given result.
func says(result step.Result) func(context.Context, *widget) step.Result {
	return func(context.Context, *widget) step.Result { return result }
}

// newDeferredResult returns a result whose write may be deferred.
func unhurried() step.Result { return step.Wait(time.Minute, "Creating", "x").DeferWrite() }

// The changes of a run with a deferred write are kept for the next run, and are written with later changes.
func TestUnhurriedPassesAreWrittenTogether(t *testing.T) {
	t.Parallel()

	world, obj := newWorld(t, fresh())
	clk := clocktesting.NewFakePassiveClock(start)
	world.runner.Clock = clk
	found, told := 0, 0
	run := func(obj *widget, result step.Result) time.Duration {
		t.Helper()

		return world.after(t, obj, func(ctx context.Context, w *widget) step.Result {
			step.OnNextSave(ctx, func() { told++ })

			if w.Status.MachineID == "" {
				found++
				w.Status.MachineID = "100"
			}

			return result
		})
	}

	if after := run(obj, unhurried()); after != 5*time.Second || world.statusPatches != 0 || told != 0 {
		t.Errorf("requeued after %s with %d writes, reported %d times", after, world.statusPatches, told)
	}

	clk.SetTime(start.Add(4 * time.Second))

	if after := run(world.read(t), unhurried()); after != time.Second || world.statusPatches != 0 || found != 1 {
		t.Errorf("requeued after %s with %d writes; found %d times", after, world.statusPatches, found)
	}

	run(world.read(t), step.Done())

	if got := world.read(t); got.Status.MachineID != "100" || world.statusPatches != 1 || told != 1 {
		t.Errorf("machine %q after %d writes, reported %d times", got.Status.MachineID, world.statusPatches, told)
	}

	// The maximum delay has passed, so the changes are written.
	run(world.read(t), unhurried())
	clk.SetTime(start.Add(10 * time.Second))

	if after := run(world.read(t), unhurried()); after != time.Minute || world.statusPatches != 2 {
		t.Errorf("requeued after %s with %d writes", after, world.statusPatches)
	}
}

// If deferred changes are undone, nothing is written. After a restart of the operator, an object that becomes
// ready when its hypervisor is connected keeps the lastTransitionTime that the API server has.
func TestWhatCameToNothingIsNotWritten(t *testing.T) {
	t.Parallel()

	world, obj := newWorld(t, fresh())
	clk := clocktesting.NewFakePassiveClock(start)
	world.runner.Clock = clk
	run := func(obj *widget, machine string, result step.Result) {
		t.Helper()
		world.after(t, obj, func(_ context.Context, w *widget) step.Result {
			if machine != "" {
				w.Status.MachineID = machine
			}

			return result
		})
	}

	run(obj, "1", step.Done())

	before := world.read(t)
	world.runner = &step.Reconciler{Client: world.client, Controller: "widget", Clock: clk}

	clk.SetTime(start.Add(time.Hour))
	run(world.read(t), "2", unhurried())
	clk.SetTime(start.Add(time.Hour + time.Second))
	run(world.read(t), "1", step.Done())

	seen := world.read(t)
	run(seen, "", step.Done()) // the deferred object is not used, either

	if seen.Status.MachineID != "1" {
		t.Errorf("machine %q, want the deferred change to be undone", seen.Status.MachineID)
	}

	if after := world.read(t); after.ResourceVersion != before.ResourceVersion {
		t.Errorf("%d writes, the last: %s", world.statusPatches, world.lastPatch)
	}
}

// An object from the cache has a kind and may lack managedFields. An object from a live read or a write has
// managedFields but no kind. A deferred object of one sort must not change these fields of the other sort,
// because the API server rejects such a patch.
func TestWhatIsHeldLeavesTheKind(t *testing.T) {
	t.Parallel()

	world, live := newWorld(t, fresh())
	live.TypeMeta = metav1.TypeMeta{}
	live.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "somebody", Operation: metav1.ManagedFieldsOperationUpdate}}
	world.after(t, live, says(unhurried()))

	cached := world.read(t)
	cached.TypeMeta = metav1.TypeMeta{APIVersion: "test.hyperfleet.io/v1", Kind: "widget"}
	cached.ManagedFields = nil
	world.after(t, cached, says(step.Done()))

	if world.statusPatches != 1 || bytes.Contains(world.lastPatch, []byte(`"kind"`)) ||
		bytes.Contains(world.lastPatch, []byte("somebody")) {
		t.Errorf("%d writes, the last: %s", world.statusPatches, world.lastPatch)
	}
}

// A run with a callback for OnSaved or OnTransition is written immediately, even if its result defers the write.
func TestNewsAreInAHurry(t *testing.T) {
	t.Parallel()

	world, obj := newWorld(t, fresh())
	told := false
	after := world.after(t, obj, func(ctx context.Context, _ *widget) step.Result {
		step.OnSaved(ctx, func() { told = true })

		return unhurried()
	})

	if after != time.Minute || !told || world.statusPatches != 1 {
		t.Errorf("requeued after %s; reported %v after %d writes", after, told, world.statusPatches)
	}
}

// If another client writes the object, the deferred changes are dropped and observed again.
func TestHeldNewsOfAnotherVersionAreDropped(t *testing.T) {
	t.Parallel()

	world, obj := newWorld(t, fresh())
	finds := func(_ context.Context, w *widget) step.Result {
		w.Status.MachineID += "1"

		return unhurried()
	}

	world.after(t, obj, finds)
	world.somebodyWrites(t, "9")

	seen := world.read(t)
	world.after(t, seen, finds)

	if seen.Status.MachineID != "91" {
		t.Errorf("machine %q, want that of the other client and one more", seen.Status.MachineID)
	}
}

// An object that is older than this process's last write is not reconciled, so no call is made and no write
// fails. If the API server was restored from a backup and never has the write, the object is reconciled again
// after a while.
func TestACopyFromBeforeOurOwnWriteIsLeftAlone(t *testing.T) {
	t.Parallel()

	world, obj := newWorld(t, fresh())
	stale, restored := world.read(t), world.read(t)
	clk := clocktesting.NewFakePassiveClock(start)
	world.runner.Clock = clk
	runs := 0
	counts := func(context.Context, *widget) step.Result {
		runs++

		return step.Done()
	}

	world.after(t, obj, counts)

	for range 2 {
		if after := world.after(t, stale, counts); after <= 0 || runs != 1 {
			t.Errorf("a stale copy is requeued after %s, with %d runs", after, runs)
		}
	}

	world.after(t, world.read(t), counts)

	if runs != 2 {
		t.Errorf("the current copy was not reconciled: %d runs", runs)
	}

	other, obj := newWorld(t, fresh())
	other.runner.Clock = clk
	other.after(t, obj, counts)
	clk.SetTime(clk.Now().Add(time.Minute))

	other.after(t, restored, counts)

	if runs != 4 {
		t.Errorf("%d runs, want one for the restored copy", runs)
	}
}

// If no other finalizer keeps an object, its status is not written before the finalizer is removed.
func TestTheLastFinalizerNeedsNoStatus(t *testing.T) {
	t.Parallel()

	world, obj := deleted(t, finalizer)
	told := 0
	steps := []step.Step[*widget]{{Condition: "Gone", Run: func(ctx context.Context, _ *widget) step.Result {
		step.OnSaved(ctx, func() { told++ })
		step.OnFinalized(ctx, func() { told++ })

		return step.Done()
	}}}

	_, err := step.Finalize(t.Context(), world.runner, obj, finalizer, steps, obj)
	if err != nil || world.statusPatches != 0 || told != 2 {
		t.Errorf("Finalize() = %v after %d writes of the status, reported %d times", err, world.statusPatches, told)
	}

	if got := meta.FindStatusCondition(obj.Status.Conditions, "Gone"); got != nil && got.Reason == "" {
		t.Errorf("condition %+v", got)
	}

	if err := world.client.Get(t.Context(), client.ObjectKeyFromObject(obj), &widget{}); !apierrors.IsNotFound(err) {
		t.Errorf("get = %v, want not found", err)
	}
}
