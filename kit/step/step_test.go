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

// returns is a step that comes to a given result and notes that it ran.
func returns(condition string, result step.Result) step.Step[*[]string] {
	return step.Step[*[]string]{Condition: condition, Run: func(_ context.Context, ran *[]string) step.Result {
		*ran = append(*ran, condition)

		return result
	}}
}

// said is a condition without its time and generation.
func said(w *widget) []string {
	var out []string
	for _, c := range w.Status.Conditions {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s=%s %s %s", c.Type, c.Status, c.Reason, c.Message)))
	}

	slices.Sort(out)

	return out
}

func TestRunReportsWhatTheStepsCameTo(t *testing.T) {
	t.Parallel()

	full := errclass.New(errclass.Resource, "StorageFull", "clone: storage local is full")
	cases := map[string]struct {
		second step.Result
		want   []string
		result ctrl.Result
		err    error
	}{
		"all done": {
			second: step.Done(),
			want:   []string{"A=True Done", "B=True Done", "C=True Done", "Ready=True Ready"},
		},
		"done in other words": {
			second: step.Done().WithReason("Placed", "on node pve1"),
			want:   []string{"A=True Done", "B=True Placed on node pve1", "C=True Done", "Ready=True Ready"},
		},
		"rests": {
			second: step.Steady(time.Second, "Idle", "waits for a job"),
			want: []string{
				"A=True Done", "B=False Idle waits for a job", "C=Unknown Pending an earlier step is not done",
				"Ready=True Idle waits for a job",
			},
			result: ctrl.Result{RequeueAfter: time.Second},
		},
		"waits": {
			second: step.Wait(time.Second, "Cloning", "task runs"),
			want: []string{
				"A=True Done", "B=False Cloning task runs", "C=Unknown Pending an earlier step is not done",
				"Ready=False Cloning task runs", "Reconciling=True Cloning task runs",
			},
			result: ctrl.Result{RequeueAfter: time.Second},
		},
		"waits for an event": {
			second: step.Wait(0, "Cloning", "task runs"),
			want: []string{
				"A=True Done", "B=False Cloning task runs", "C=Unknown Pending an earlier step is not done",
				"Ready=False Cloning task runs", "Reconciling=True Cloning task runs",
			},
		},
		"stalls": {
			second: step.Stall("TemplateMissing", "make template 9000"),
			want: []string{
				"A=True Done", "B=False TemplateMissing make template 9000",
				"C=Unknown Pending an earlier step is not done",
				"Ready=False TemplateMissing make template 9000", "Stalled=True TemplateMissing make template 9000",
			},
			result: ctrl.Result{RequeueAfter: time.Hour},
		},
		"fails": {
			second: step.Fail(errBoom),
			want: []string{
				"A=True Done", "B=False Failed boom", "C=Unknown Pending an earlier step is not done",
				"Ready=False Failed boom", "Reconciling=True Failed boom",
			},
			err: errBoom,
		},
		"fails with a reason of its own": {
			second: step.Fail(fmt.Errorf("create: %w", full)),
			want: []string{
				"A=True Done", "B=False StorageFull create: clone: storage local is full",
				"C=Unknown Pending an earlier step is not done",
				"Ready=False StorageFull create: clone: storage local is full",
				"Reconciling=True StorageFull create: clone: storage local is full",
			},
			err: full,
		},
		"a resource error waits": {
			second: step.ForError(full, time.Minute),
			want: []string{
				"A=True Done", "B=False StorageFull clone: storage local is full",
				"C=Unknown Pending an earlier step is not done",
				"Ready=False StorageFull clone: storage local is full",
				"Reconciling=True StorageFull clone: storage local is full",
			},
			result: ctrl.Result{RequeueAfter: time.Minute},
		},
		"a configuration error stalls": {
			second: step.ForError(errclass.Wrap(errclass.Configuration, "BadURL", errBoom), time.Minute),
			want: []string{
				"A=True Done", "B=False BadURL boom", "C=Unknown Pending an earlier step is not done",
				"Ready=False BadURL boom", "Stalled=True BadURL boom",
			},
			result: ctrl.Result{RequeueAfter: time.Hour},
		},
		"a reason the server would refuse is fixed": {
			second: step.Stall("no room left!", "add disks"),
			want: []string{
				"A=True Done", "B=False NoRoomLeft add disks", "C=Unknown Pending an earlier step is not done",
				"Ready=False NoRoomLeft add disks", "Stalled=True NoRoomLeft add disks",
			},
			result: ctrl.Result{RequeueAfter: time.Hour},
		},
		"says more than its own condition": {
			second: step.Done().Also("Insecure", metav1.ConditionTrue, "ByName", "TLS is not checked"),
			want: []string{
				"A=True Done", "B=True Done", "C=True Done", "Insecure=True ByName TLS is not checked", "Ready=True Ready",
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			world, obj := newWorld(t, fresh())
			runner := &step.Runner{
				Client: world.client, Controller: "widget", Resync: time.Hour, Clock: clocktesting.NewFakePassiveClock(start),
			}
			ran := []string{}
			steps := []step.Step[*[]string]{returns("A", step.Done()), returns("B", tc.second), returns("C", step.Done())}

			result, err := step.Run(t.Context(), runner, obj, steps, &ran)
			if result != tc.result || !errors.Is(err, tc.err) {
				t.Errorf("Run() = %v, %v; want %v, %v", result, err, tc.result, tc.err)
			}

			got := world.read(t)
			if diff := cmp.Diff(tc.want, said(got)); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}

			if got.Status.ObservedGeneration != 3 || world.statusPatches != 1 {
				t.Errorf("observed generation %d, %d patches; want 3 and 1", got.Status.ObservedGeneration, world.statusPatches)
			}
		})
	}
}

func TestNothingIsSentWhenNothingChanged(t *testing.T) {
	t.Parallel()

	world, obj := newWorld(t, fresh())
	clock := clocktesting.NewFakePassiveClock(start)
	runner := &step.Runner{Client: world.client, Controller: "widget", Clock: clock}
	steps := []step.Step[*[]string]{returns("A", step.Done()), returns("B", step.Wait(time.Second, "Busy", "x"))}

	for range 3 {
		if _, err := step.Run(t.Context(), runner, obj, steps, new([]string)); err != nil {
			t.Fatal(err)
		}

		clock.SetTime(clock.Now().Add(time.Hour))
		obj = world.read(t)
	}

	if world.statusPatches != 1 {
		t.Errorf("%d patches, want 1", world.statusPatches)
	}

	steps[1] = returns("B", step.Wait(time.Second, "Busy", "y"))
	if _, err := step.Run(t.Context(), runner, obj, steps, new([]string)); err != nil {
		t.Fatal(err)
	}

	b := meta.FindStatusCondition(world.read(t).Status.Conditions, "B")
	if b.Message != "y" || !b.LastTransitionTime.Time.Equal(start) {
		t.Errorf("B = %v, want message y and the transition of %v", b, start)
	}

	steps[1] = returns("B", step.Done())
	if _, err := step.Run(t.Context(), runner, world.read(t), steps, new([]string)); err != nil {
		t.Fatal(err)
	}

	b = meta.FindStatusCondition(world.read(t).Status.Conditions, "B")
	if !b.LastTransitionTime.Time.Equal(clock.Now()) {
		t.Errorf("B changed at %v, want %v", b.LastTransitionTime, clock.Now())
	}
}

func TestStepsNotReachedKeepWhatWasSaidOfThem(t *testing.T) {
	t.Parallel()

	world, obj := newWorld(t, fresh())
	runner := &step.Runner{Client: world.client, Controller: "widget"}
	done := []step.Step[*[]string]{returns("A", step.Done()), returns("B", step.Done())}

	if _, err := step.Run(t.Context(), runner, obj, done, new([]string)); err != nil {
		t.Fatal(err)
	}

	obj = world.read(t)
	obj.Generation = 4
	done[0] = returns("A", step.Stall("Broken", "fix it"))

	if _, err := step.Run(t.Context(), runner, obj, done, new([]string)); err != nil {
		t.Fatal(err)
	}

	b := meta.FindStatusCondition(world.read(t).Status.Conditions, "B")
	if b.Status != metav1.ConditionTrue || b.ObservedGeneration != 3 {
		t.Errorf("B = %v, want True as of generation 3", b)
	}
}

func TestAPanicIsAFailureOfItsStep(t *testing.T) {
	t.Parallel()

	world, obj := newWorld(t, fresh())
	steps := []step.Step[*[]string]{
		{Condition: "A", Run: func(context.Context, *[]string) step.Result { panic("index out of range") }},
		returns("B", step.Done()),
	}

	_, err := step.Run(t.Context(), &step.Runner{Client: world.client, Controller: "widget"}, obj, steps, new([]string))
	if err == nil || !strings.Contains(err.Error(), "run step A: panic: index out of range") {
		t.Errorf("err = %v", err)
	}

	if got := meta.FindStatusCondition(world.read(t).Status.Conditions, "A"); got.Reason != "Panic" {
		t.Errorf("A = %v", got)
	}
}

func TestTheZeroResultIsAFailure(t *testing.T) {
	t.Parallel()

	world, obj := newWorld(t, fresh())
	steps := []step.Step[*[]string]{returns("A", step.Result{})}

	_, err := step.Run(t.Context(), &step.Runner{Client: world.client, Controller: "widget"}, obj, steps, new([]string))
	if err == nil || !strings.Contains(err.Error(), "zero result") {
		t.Errorf("err = %v", err)
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
		"a conflict is tried again quietly": {
			refuse: apierrors.NewConflict(resource, "w", errBoom), step: step.Done(), again: true,
		},
		"a deleted object is fine":       {refuse: apierrors.NewNotFound(resource, "w"), step: step.Fail(errBoom)},
		"another error is returned":      {refuse: errBoom, step: step.Done(), errs: []error{errBoom}},
		"a step's conflict with a child": {step: step.Fail(apierrors.NewConflict(resource, "child", errBoom)), again: true},
		"step and write fail, both are said": {
			refuse: errBoom, step: step.Fail(context.DeadlineExceeded), errs: []error{errBoom, context.DeadlineExceeded},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			world, obj := newWorld(t, fresh())
			world.refuse = tc.refuse

			result, err := step.Run(t.Context(), &step.Runner{Client: world.client, Controller: "widget"},
				obj, []step.Step[*[]string]{returns("A", tc.step)}, new([]string))
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

func TestAnEndingProgramSaysNothingButKeepsFacts(t *testing.T) {
	t.Parallel()

	world, obj := newWorld(t, fresh())
	ctx, cancel := context.WithCancel(t.Context())
	steps := []step.Step[*widget]{{Condition: "A", Run: func(ctx context.Context, w *widget) step.Result {
		w.Status.MachineID = "100"

		cancel()

		return step.Fail(fmt.Errorf("clone: %w", ctx.Err()))
	}}}

	_, err := step.Run(ctx, &step.Runner{Client: world.client, Controller: "widget"}, obj, steps, obj)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}

	if got := world.read(t); got.Status.MachineID != "100" || len(got.Status.Conditions) != 0 {
		t.Errorf("status = %+v, want the machine's id and no conditions", got.Status)
	}
}

func TestNamesOfStepsWithoutACondition(t *testing.T) {
	t.Parallel()

	world, obj := newWorld(t, fresh())
	steps := []step.Step[*[]string]{{Name: "Clone", Run: clone}}

	_, err := step.Run(t.Context(), &step.Runner{Client: world.client, Controller: "widget"}, obj, steps, new([]string))
	if err == nil || !strings.Contains(err.Error(), "run step Clone: panic") {
		t.Errorf("err = %v", err)
	}

	want := []string{"Ready=False Panic run step Clone: panic: no", "Reconciling=True Panic run step Clone: panic: no"}
	if diff := cmp.Diff(want, said(world.read(t))); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
}

func clone(context.Context, *[]string) step.Result { panic("no") }

// A step that is not in the list of an object neither runs nor has a condition, reached or not.
func TestStepsThatDoNotApply(t *testing.T) {
	t.Parallel()

	world, obj := newWorld(t, fresh())
	runner := &step.Runner{Client: world.client, Controller: "widget"}

	var ran []string

	never, once := returns("Never", step.Done()), returns("Once", step.Done())
	never.When = func(*[]string) bool { return false }
	once.When = func(ran *[]string) bool { return len(*ran) == 1 } // an earlier step decides
	later := never
	later.Condition = "Later"

	steps := []step.Step[*[]string]{never, returns("A", step.Done()), once, returns("B", step.Wait(time.Second, "Waiting", "")), later}
	if _, err := step.Run(t.Context(), runner, obj, steps, &ran); err != nil {
		t.Fatal(err)
	}

	if diff := cmp.Diff([]string{"A", "Once", "B"}, ran); diff != "" {
		t.Errorf("ran (-want +got):\n%s", diff)
	}

	want := []string{"A=True Done", "B=False Waiting", "Once=True Done", "Ready=False Waiting", "Reconciling=True Waiting"}
	if diff := cmp.Diff(want, said(world.read(t))); diff != "" {
		t.Errorf("conditions (-want +got):\n%s", diff)
	}
}
