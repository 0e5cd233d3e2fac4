// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/kit/step"
)

// What an unhurried pass has found is written with what comes next, and the next pass has it.
func TestUnhurriedPassesAreWrittenTogether(t *testing.T) {
	t.Parallel()

	world, obj := newWorld(t, fresh())
	clk := clocktesting.NewFakePassiveClock(start)
	runner := &step.Runner{Client: world.client, Controller: "widget", Clock: clk}
	found, told := 0, 0
	run := func(obj *widget, result step.Result) time.Duration {
		t.Helper()

		steps := []step.Step[*widget]{{Condition: "A", Run: func(ctx context.Context, w *widget) step.Result {
			step.Afterwards(ctx, func() { told++ })

			if w.Status.MachineID == "" {
				found++
				w.Status.MachineID = "100"
			}

			return result
		}}}

		out, err := step.Run(t.Context(), runner, obj, steps, obj)
		if err != nil {
			t.Fatal(err)
		}

		return out.RequeueAfter
	}

	making := step.Wait(time.Minute, "Creating", "x").Unhurried()
	if after := run(obj, making); after != 5*time.Second || world.statusPatches != 0 || told != 0 {
		t.Errorf("looked at again in %s after %d writes, told %d times", after, world.statusPatches, told)
	}

	clk.SetTime(start.Add(4 * time.Second))

	if after := run(world.read(t), making); after != time.Second || world.statusPatches != 0 || found != 1 {
		t.Errorf("looked at again in %s after %d writes; found %d times", after, world.statusPatches, found)
	}

	run(world.read(t), step.Done())

	if got := world.read(t); got.Status.MachineID != "100" || world.statusPatches != 1 || told != 1 {
		t.Errorf("machine %q after %d writes, told %d times", got.Status.MachineID, world.statusPatches, told)
	}

	// It lasts: so it is written.
	run(world.read(t), making)
	clk.SetTime(start.Add(10 * time.Second))

	if after := run(world.read(t), making); after != time.Minute || world.statusPatches != 2 {
		t.Errorf("looked at again in %s after %d writes", after, world.statusPatches)
	}
}

// What was held and came to nothing is no write: after a restart, an object that is ready once its
// hypervisor is connected stays ready since the time that the server has.
func TestWhatCameToNothingIsNotWritten(t *testing.T) {
	t.Parallel()

	world, obj := newWorld(t, fresh())
	clk := clocktesting.NewFakePassiveClock(start)
	runner := &step.Runner{Client: world.client, Controller: "widget", Clock: clk}
	run := func(obj *widget, machine string, result step.Result) {
		t.Helper()

		steps := []step.Step[*widget]{{Condition: "A", Run: func(_ context.Context, w *widget) step.Result {
			if machine != "" {
				w.Status.MachineID = machine
			}

			return result
		}}}

		if _, err := step.Run(t.Context(), runner, obj, steps, obj); err != nil {
			t.Fatal(err)
		}
	}

	run(obj, "1", step.Done())

	before := world.read(t)
	runner = &step.Runner{Client: world.client, Controller: "widget", Clock: clk}

	clk.SetTime(start.Add(time.Hour))
	run(world.read(t), "2", step.Wait(time.Minute, "NotConnected", "x").Unhurried())
	clk.SetTime(start.Add(time.Hour + time.Second))
	run(world.read(t), "1", step.Done())

	seen := world.read(t)
	run(seen, "", step.Done()) // it is not what was held, either

	if seen.Status.MachineID != "1" {
		t.Errorf("machine %q, as was held and undone", seen.Status.MachineID)
	}

	if after := world.read(t); after.ResourceVersion != before.ResourceVersion {
		t.Errorf("%d writes, the last: %s", world.statusPatches, world.lastPatch)
	}
}

// A copy of the cache has its kind and may be without its managers, one that was read or written at
// the API server is the other way round: what is held of the one does not take the other's away,
// which the API server refuses.
func TestWhatIsHeldLeavesTheKind(t *testing.T) {
	t.Parallel()

	world, live := newWorld(t, fresh())
	live.TypeMeta = metav1.TypeMeta{}
	live.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "somebody", Operation: metav1.ManagedFieldsOperationUpdate}}
	runner := &step.Runner{Client: world.client, Controller: "widget"}
	run := func(obj *widget, result step.Result) {
		t.Helper()

		steps := []step.Step[*widget]{{Condition: "A", Run: func(context.Context, *widget) step.Result { return result }}}
		if _, err := step.Run(t.Context(), runner, obj, steps, obj); err != nil {
			t.Fatal(err)
		}
	}

	run(live, step.Wait(time.Minute, "Creating", "x").Unhurried())

	cached := world.read(t)
	cached.TypeMeta = metav1.TypeMeta{APIVersion: "test.hyperfleet.io/v1", Kind: "widget"}
	cached.ManagedFields = nil
	run(cached, step.Done())

	if world.statusPatches != 1 || bytes.Contains(world.lastPatch, []byte(`"kind"`)) ||
		bytes.Contains(world.lastPatch, []byte("somebody")) {
		t.Errorf("%d writes, the last: %s", world.statusPatches, world.lastPatch)
	}
}

// A pass that has something to tell is written at once, however little hurry it is in.
func TestNewsAreInAHurry(t *testing.T) {
	t.Parallel()

	world, obj := newWorld(t, fresh())
	told := false
	steps := []step.Step[*widget]{{Condition: "A", Run: func(ctx context.Context, _ *widget) step.Result {
		step.OnSaved(ctx, func() { told = true })

		return step.Wait(time.Minute, "Creating", "x").Unhurried()
	}}}

	result, err := step.Run(t.Context(), &step.Runner{Client: world.client, Controller: "widget"}, obj, steps, obj)
	if err != nil || result.RequeueAfter != time.Minute || !told || world.statusPatches != 1 {
		t.Errorf("Run() = %v, %v; told %v after %d writes", result, err, told, world.statusPatches)
	}
}

// Somebody else's write makes what was found and not written be found again.
func TestHeldNewsOfAnotherVersionAreDropped(t *testing.T) {
	t.Parallel()

	world, obj := newWorld(t, fresh())
	runner := &step.Runner{Client: world.client, Controller: "widget"}
	steps := []step.Step[*widget]{{Condition: "A", Run: func(_ context.Context, w *widget) step.Result {
		w.Status.MachineID += "1"

		return step.Wait(time.Minute, "Creating", "x").Unhurried()
	}}}

	if _, err := step.Run(t.Context(), runner, obj, steps, obj); err != nil {
		t.Fatal(err)
	}

	other := world.read(t)
	other.Status.MachineID = "9"

	if err := world.client.Status().Update(t.Context(), other); err != nil {
		t.Fatal(err)
	}

	seen := world.read(t)
	if _, err := step.Run(t.Context(), runner, seen, steps, seen); err != nil {
		t.Fatal(err)
	}

	if seen.Status.MachineID != "91" {
		t.Errorf("machine %q, want that of the other writer and one more", seen.Status.MachineID)
	}
}

// A copy from before our own last write is not worked on: nothing is called, nothing refused.
func TestACopyFromBeforeOurOwnWriteIsLeftAlone(t *testing.T) {
	t.Parallel()

	world, obj := newWorld(t, fresh())
	stale := world.read(t)
	clk := clocktesting.NewFakePassiveClock(start)
	runner := &step.Runner{Client: world.client, Controller: "widget", Clock: clk}
	runs := 0
	steps := []step.Step[*widget]{{Condition: "A", Run: func(context.Context, *widget) step.Result {
		runs++

		return step.Done()
	}}}

	if _, err := step.Run(t.Context(), runner, obj, steps, obj); err != nil {
		t.Fatal(err)
	}

	for range 2 {
		result, err := step.Run(t.Context(), runner, stale, steps, stale)
		if err != nil || result.RequeueAfter <= 0 || runs != 1 {
			t.Errorf("Run() of a stale copy = %v, %v after %d runs", result, err, runs)
		}
	}

	seen := world.read(t)
	if _, err := step.Run(t.Context(), runner, seen, steps, seen); err != nil || runs != 2 {
		t.Errorf("the copy that the server has was not worked on: %v, %d runs", err, runs)
	}
}

// An API server that was restored from a backup never has the write: its copies count again.
func TestACopyOfARestoredServerIsWorkedOn(t *testing.T) {
	t.Parallel()

	world, obj := newWorld(t, fresh())
	restored := world.read(t)
	clk := clocktesting.NewFakePassiveClock(start)
	runner := &step.Runner{Client: world.client, Controller: "widget", Clock: clk}
	runs := 0
	steps := []step.Step[*widget]{{Condition: "A", Run: func(context.Context, *widget) step.Result {
		runs++

		return step.Done()
	}}}

	for _, object := range []*widget{obj, restored} {
		if _, err := step.Run(t.Context(), runner, object, steps, object); err != nil {
			t.Fatal(err)
		}

		clk.SetTime(clk.Now().Add(time.Minute))
	}

	if runs != 2 {
		t.Errorf("%d runs, want one of each", runs)
	}
}

// The status of an object that nobody else keeps is not written before it goes.
func TestTheLastFinalizerNeedsNoStatus(t *testing.T) {
	t.Parallel()

	world, obj := deleted(t, finalizer)
	told := 0
	steps := []step.Step[*widget]{{Condition: "Gone", Run: func(ctx context.Context, _ *widget) step.Result {
		step.OnSaved(ctx, func() { told++ })
		step.OnFinalized(ctx, func() { told++ })

		return step.Done()
	}}}

	_, err := step.Finalize(t.Context(), &step.Runner{Client: world.client, Controller: "widget"}, obj, finalizer, steps, obj)
	if err != nil || world.statusPatches != 0 || told != 2 {
		t.Errorf("Finalize() = %v after %d writes of the status, told %d times", err, world.statusPatches, told)
	}

	if got := meta.FindStatusCondition(obj.Status.Conditions, "Gone"); got != nil && got.Reason == "" {
		t.Errorf("condition %+v", got)
	}
}
