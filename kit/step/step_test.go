// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

var errBoom = errors.New("boom")

// newRecordingStep returns a step with the given result that records that it ran.
func newRecordingStep(condition string, result step.Result) step.Step[*[]string] {
	return step.Step[*[]string]{Condition: condition, Run: func(_ context.Context, ran *[]string) step.Result {
		*ran = append(*ran, condition)

		return result
	}}
}

// formatConditions formats conditions without their times and generations.
func formatConditions(w *widget) []string {
	var out []string
	for _, c := range w.Status.Conditions {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s=%s %s %s", c.Type, c.Status, c.Reason, c.Message)))
	}

	slices.Sort(out)

	return out
}

// newStoppedConditions returns the conditions of a list of three steps whose second step has stopped the run
// with a reason and a message.
func newStoppedConditions(reason string, more ...string) []string {
	out := append([]string{
		"A=True Done", "B=False " + reason, "C=Unknown Pending an earlier step is not done",
	}, more...)
	slices.Sort(out)

	return out
}

// newNotReadyConditions returns the summary conditions of an object that is not ready.
func newNotReadyConditions(why, reason string) []string {
	return []string{step.Ready + "=False " + reason, why + "=True " + reason}
}

func TestRunReportsResults(t *testing.T) {
	t.Parallel()

	full := errclass.New(errclass.Resource, "StorageFull", "clone: storage local is full")
	cases := map[string]struct {
		second step.Result
		// all are the conditions if the list is done. Otherwise, says is the condition of the step that
		// stopped the run, and why is Reconciling or Stalled.
		all       []string
		says, why string
		result    ctrl.Result
		err       error
	}{
		"all done": {second: step.Done(), all: []string{"A=True Done", "B=True Done", "C=True Done", "Ready=True Ready"}},
		"done with its own reason": {
			second: step.Done().WithReason("Placed", "on node pve1"),
			all:    []string{"A=True Done", "B=True Placed on node pve1", "C=True Done", "Ready=True Ready"},
		},
		"sets additional conditions": {
			second: step.Done().WithCondition("Insecure", metav1.ConditionTrue, "ByName", "TLS is not checked"),
			all: []string{
				"A=True Done", "B=True Done", "C=True Done", "Insecure=True ByName TLS is not checked", "Ready=True Ready",
			},
		},
		"rests": {
			second: step.WaitReady(time.Second, "Idle", "waits for a job"),
			all:    newStoppedConditions("Idle waits for a job", "Ready=True Idle waits for a job"),
			result: ctrl.Result{RequeueAfter: time.Second},
		},
		"waits": {
			second: step.Wait(time.Second, "Cloning", "task runs"), says: "Cloning task runs", why: "Reconciling",
			result: ctrl.Result{RequeueAfter: time.Second},
		},
		"stalls": {
			second: step.Stall("TemplateMissing", "make template 9000"), says: "TemplateMissing make template 9000", why: "Stalled",
			result: ctrl.Result{RequeueAfter: time.Hour},
		},
		"fails": {second: step.Fail(errBoom), says: "Failed boom", why: "Reconciling", err: errBoom},
		"fails with its own reason": {
			second: step.Fail(fmt.Errorf("create: %w", full)), err: full,
			says: "StorageFull create: clone: storage local is full", why: "Reconciling",
		},
		"a resource error waits": {
			second: step.FromError(full, time.Minute), says: "StorageFull clone: storage local is full", why: "Reconciling",
			result: ctrl.Result{RequeueAfter: time.Minute},
		},
		"a configuration error stalls": {
			second: step.FromError(errclass.Wrap(errclass.Configuration, "BadURL", errBoom), time.Minute),
			says:   "BadURL boom", why: "Stalled", result: ctrl.Result{RequeueAfter: time.Hour},
		},
		"a transient error fails": {
			second: step.FromError(errclass.Wrap(errclass.Transient, "Busy", errBoom), time.Minute), err: errBoom,
			says: "Busy boom", why: "Reconciling",
		},
		"an invalid reason is replaced": {
			second: step.Stall("no room left!", "add disks"), says: "NoRoomLeft add disks", why: "Stalled",
			result: ctrl.Result{RequeueAfter: time.Hour},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			fixture, obj := newFixture(t, newWidget())
			fixture.runner.Resync, fixture.runner.Clock = time.Hour, clocktesting.NewFakePassiveClock(startTime)

			want := tc.all
			if want == nil {
				want = newStoppedConditions(tc.says, newNotReadyConditions(tc.why, tc.says)...)
			}

			_, result, err := fixture.runSteps(t, obj, newRecordingStep("A", step.Done()), newRecordingStep("B", tc.second), newRecordingStep("C", step.Done()))
			if result != tc.result || !errors.Is(err, tc.err) {
				t.Errorf("Run() = %v, %v; want %v, %v", result, err, tc.result, tc.err)
			}

			got := fixture.getWidget(t)
			if diff := cmp.Diff(want, formatConditions(got)); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}

			if got.Status.ObservedGeneration != 3 || fixture.statusPatches != 1 {
				t.Errorf("observed generation %d, %d patches; want 3 and 1", got.Status.ObservedGeneration, fixture.statusPatches)
			}
		})
	}
}

func TestUnchangedStatusIsNotWritten(t *testing.T) {
	t.Parallel()

	fixture, obj := newFixture(t, newWidget())
	clock := clocktesting.NewFakePassiveClock(startTime)
	fixture.runner.Clock = clock
	// b reconciles an object and returns its condition B.
	b := func(obj *widget, second step.Result) *metav1.Condition {
		t.Helper()

		if _, _, err := fixture.runSteps(t, obj, newRecordingStep("A", step.Done()), newRecordingStep("B", second)); err != nil {
			t.Fatal(err)
		}

		return meta.FindStatusCondition(fixture.getWidget(t).Status.Conditions, "B")
	}

	for range 3 {
		b(obj, step.Wait(time.Second, "Busy", "x"))
		clock.SetTime(clock.Now().Add(time.Hour))

		obj = fixture.getWidget(t)
	}

	if fixture.statusPatches != 1 {
		t.Errorf("%d patches, want 1", fixture.statusPatches)
	}

	if got := b(obj, step.Wait(time.Second, "Busy", "y")); got.Message != "y" || !got.LastTransitionTime.Time.Equal(startTime) {
		t.Errorf("B = %v, want message y and the transition of %v", got, startTime)
	}

	if got := b(fixture.getWidget(t), step.Done()); !got.LastTransitionTime.Time.Equal(clock.Now()) {
		t.Errorf("B changed at %v, want %v", got.LastTransitionTime, clock.Now())
	}
}

func TestUnreachedStepsKeepConditions(t *testing.T) {
	t.Parallel()

	fixture, obj := newFixture(t, newWidget())

	for generation, first := range []step.Result{step.Done(), step.Stall("Broken", "fix it")} {
		obj.Generation = int64(3 + generation)

		if _, _, err := fixture.runSteps(t, obj, newRecordingStep("A", first), newRecordingStep("B", step.Done())); err != nil {
			t.Fatal(err)
		}

		obj = fixture.getWidget(t)
	}

	b := meta.FindStatusCondition(obj.Status.Conditions, "B")
	if b.Status != metav1.ConditionTrue || b.ObservedGeneration != 3 {
		t.Errorf("B = %v, want True as of generation 3", b)
	}
}

// A step that panics, returns the zero result, or has no name counts as failed.
func TestInvalidStepsFail(t *testing.T) {
	t.Parallel()

	panics := func(context.Context, *[]string) step.Result { panic("no") }
	for name, tc := range map[string]struct {
		step step.Step[*[]string]
		says string
		want []string
	}{
		"a panic": {
			step.Step[*[]string]{Condition: "A", Run: panics}, "run step A: panic: no",
			append([]string{"A=False Panic run step A: panic: no", "B=Unknown Pending an earlier step is not done"},
				newNotReadyConditions("Reconciling", "Panic run step A: panic: no")...),
		},
		"a panic without a condition": {
			step.Step[*[]string]{Name: "Clone", Run: panics}, "run step Clone: panic",
			append([]string{"B=Unknown Pending an earlier step is not done"},
				newNotReadyConditions("Reconciling", "Panic run step Clone: panic: no")...),
		},
		"the zero result": {step: newRecordingStep("A", step.Result{}), says: "zero result"},
		"no name":         {step: newRecordingStep("", step.Done()), says: "neither a condition nor a name"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			fixture, obj := newFixture(t, newWidget())

			_, _, err := fixture.runSteps(t, obj, tc.step, newRecordingStep("B", step.Done()))
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("err = %v, want %q", err, tc.says)
			}

			if diff := cmp.Diff(tc.want, formatConditions(fixture.getWidget(t))); tc.want != nil && diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWritesThatFail(t *testing.T) {
	t.Parallel()

	resource := schema.GroupResource{Group: "test.hyperfleet.io", Resource: "widgets"}
	cases := map[string]struct {
		refuse error
		step   step.Result
		again  bool
		errs   []error
	}{
		"a conflict is retried without an error": {
			refuse: apierrors.NewConflict(resource, "w", errBoom), step: step.Done(), again: true,
		},
		"a deleted object is fine":       {refuse: apierrors.NewNotFound(resource, "w"), step: step.Fail(errBoom)},
		"a step's conflict with a child": {step: step.Fail(apierrors.NewConflict(resource, "child", errBoom)), again: true},
		"another error is returned together with the step's error": {
			refuse: errBoom, step: step.Fail(context.DeadlineExceeded), errs: []error{errBoom, context.DeadlineExceeded},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			fixture, obj := newFixture(t, newWidget())
			fixture.patchError = tc.refuse

			result, err := fixture.reconcileStep(t.Context(), obj, newStep(tc.step))
			if again := result.RequeueAfter > 0; again != tc.again || (err != nil) != (len(tc.errs) > 0) {
				t.Errorf("Run() = %v, %v", result, err)
			}

			for _, want := range tc.errs {
				if !errors.Is(err, want) {
					t.Errorf("%v is not in %v", want, err)
				}
			}
		})
	}
}

func TestShutdownKeepsFacts(t *testing.T) {
	t.Parallel()

	fixture, obj := newFixture(t, newWidget())
	ctx, cancel := context.WithCancel(t.Context())

	_, err := fixture.reconcileStep(ctx, obj, func(ctx context.Context, w *widget) step.Result {
		w.Status.MachineID = "100"

		cancel()

		return step.Fail(fmt.Errorf("clone: %w", ctx.Err()))
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}

	if got := fixture.getWidget(t); got.Status.MachineID != "100" || len(got.Status.Conditions) != 0 {
		t.Errorf("status = %+v, want the machine's id and no conditions", got.Status)
	}
}

// A step that does not apply to an object neither runs nor has a condition, whether the run reaches it or not.
func TestStepsThatDoNotApply(t *testing.T) {
	t.Parallel()

	fixture, obj := newFixture(t, newWidget())
	never, once := newRecordingStep("Never", step.Done()), newRecordingStep("Once", step.Done())
	never.AppliesTo = func(*[]string) bool { return false }
	once.AppliesTo = func(ran *[]string) bool { return len(*ran) == 1 } // depends on an earlier step
	later := never
	later.Condition = "Later"

	ran, _, err := fixture.runSteps(t, obj,
		never, newRecordingStep("A", step.Done()), once, newRecordingStep("B", step.Wait(time.Second, "Waiting", "")), later)
	if diff := cmp.Diff([]string{"A", "Once", "B"}, ran); err != nil || diff != "" {
		t.Errorf("error %v; ran (-want +got):\n%s", err, diff)
	}

	want := []string{"A=True Done", "B=False Waiting", "Once=True Done", "Ready=False Waiting", "Reconciling=True Waiting"}
	if diff := cmp.Diff(want, formatConditions(fixture.getWidget(t))); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
}

// A delay of 0 means never, so any other delay is sooner.
func TestChooseSooner(t *testing.T) {
	t.Parallel()

	for _, tc := range []struct{ a, b, want time.Duration }{
		{0, 0, 0}, {0, time.Minute, time.Minute}, {time.Minute, 0, time.Minute},
		{time.Second, time.Minute, time.Second}, {time.Minute, time.Second, time.Second}, {-time.Second, time.Minute, time.Minute},
	} {
		if got := step.ChooseSooner(tc.a, tc.b); got != tc.want {
			t.Errorf("ChooseSooner(%s, %s) = %s, want %s", tc.a, tc.b, got, tc.want)
		}
	}
}
