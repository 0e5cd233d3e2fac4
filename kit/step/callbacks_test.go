// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// reportFixture runs one controller for one widget, and records the emitted events and the log.
type reportFixture struct {
	t        *testing.T
	fixture  *fixture
	recorder *events.FakeRecorder
	lines    bytes.Buffer
	ctx      context.Context //nolint:containedctx // it carries the logger
	runner   *step.Reconciler
	ready    *step.ReadyEvent
}

func newReportFixture(t *testing.T, obj *widget) *reportFixture {
	t.Helper()

	fixture, _ := newFixture(t, obj)
	out := &reportFixture{t: t, fixture: fixture, recorder: events.NewFakeRecorder(100)}
	logger := log.ToLogr(log.New(&out.lines, log.Options{Format: log.Text}))
	out.ctx = ctrllog.IntoContext(t.Context(), logger)
	out.runner = &step.Reconciler{
		Client: fixture.client, Controller: "widget", Recorder: out.recorder,
		LogValues: func(obj step.Object) []any {
			if w, ok := obj.(*widget); ok && w.Status.MachineID != "" {
				return []any{"vm", w.Status.MachineID}
			}

			return nil
		},
	}

	return out
}

// reconcileOnce reconciles with one step.
func (o *reportFixture) reconcileOnce(run func(ctx context.Context, w *widget) step.Result) error {
	o.t.Helper()

	steps := []step.Step[*widget]{{Condition: "Made", Run: run}}
	obj := o.fixture.getWidget(o.t)
	_, err := step.Reconcile(o.ctx, o.runner, obj, step.Plan[*widget]{
		Finalizer: finalizer, Steps: steps, DeletionSteps: steps, ReadyEvent: o.ready,
	}, obj)

	return err
}

// takeLogLines returns the log lines since the last call, without their time.
func (o *reportFixture) takeLogLines() []string {
	var out []string

	for line := range strings.Lines(o.lines.String()) {
		_, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		out = append(out, text)
	}

	o.lines.Reset()

	return out
}

func (o *reportFixture) takeEvents() []string {
	var out []string

	for {
		select {
		case event := <-o.recorder.Events:
			out = append(out, event)
		default:
			return out
		}
	}
}

func requireEqual(t *testing.T, what string, want, got []string) {
	t.Helper()

	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// A fact is reported once, after the write that records it. It is not reported if the write fails with a
// conflict, and not again by a run that read a stale object.
func TestFactIsReportedOnceAfterWrite(t *testing.T) {
	t.Parallel()

	o := newReportFixture(t, newWidget())
	counted := 0
	stale := o.fixture.getWidget(t)
	run := func(ctx context.Context, w *widget) step.Result {
		if w.Status.MachineID == "" {
			w.Status.MachineID = "100"
			step.OnSaved(ctx, func() { counted++ })
			step.OnSaved(ctx, step.Event{
				Type: corev1.EventTypeNormal, Reason: "Placed", Action: "Place", Message: "VM 100 on node pve1",
			}.EmitFunc(ctx))
		}

		return step.Done()
	}

	o.fixture.patchError = apierrors.NewConflict(schema.GroupResource{Resource: "widgets"}, "w", errors.New("changed"))
	if err := o.reconcileOnce(run); err != nil {
		t.Fatal(err)
	}

	requireEqual(t, "events of a write that was refused", nil, o.takeEvents())

	o.fixture.patchError = nil

	for range 3 {
		if err := o.reconcileOnce(run); err != nil {
			t.Fatal(err)
		}
	}

	// The cache has not received the write yet, so the second write fails with a conflict.
	if _, err := step.ReconcileSteps(o.ctx, o.runner, stale, []step.Step[*widget]{{Condition: "Made", Run: run}}, stale); err != nil {
		t.Fatal(err)
	}

	if counted != 1 {
		t.Errorf("counted %d times", counted)
	}

	requireEqual(t, "events", []string{"Normal Placed VM 100 on node pve1"}, o.takeEvents())
	requireEqual(t, "log", []string{
		`level=INFO msg="condition changed" condition=Made status=True reason=Done message="" vm=100`,
		`level=INFO msg="condition changed" condition=Ready status=True reason=Ready message="" vm=100`,
		`level=INFO msg="VM 100 on node pve1" step=Made reason=Placed vm=100`,
	}, o.takeLogLines())
}

// A cause is logged as a warning once, however many attempts fail for this cause.
func TestCauseIsReportedOnce(t *testing.T) {
	t.Parallel()

	o := newReportFixture(t, newWidget())
	logger := ctrllog.FromContext(o.ctx)
	fails := func(context.Context, *widget) step.Result { return step.Fail(errBoom) }

	for range 5 {
		err := o.reconcileOnce(fails)
		if !errors.Is(err, errBoom) {
			t.Fatalf("err = %v", err)
		}

		logger.Error(err, "Reconciler error") // as controller-runtime does for each attempt
	}

	requireEqual(t, "log", []string{`level=WARN msg="object is not ready, retrying" reason=Failed message=boom`}, o.takeLogLines())
	requireEqual(t, "events", []string{"Warning Failed boom"}, o.takeEvents())

	if err := o.reconcileOnce(func(context.Context, *widget) step.Result { return step.Stall("NoDisk", "add a disk") }); err != nil {
		t.Fatal(err)
	}

	requireEqual(t, "log of another cause",
		[]string{`level=WARN msg="object is not ready, a person has to act" reason=NoDisk message="add a disk"`}, o.takeLogLines())

	// An error that was not logged before is logged at ERROR.
	logger.Error(errBoom, "Reconciler error")
	requireEqual(t, "log", []string{`level=ERROR msg="Reconciler error" err=boom`}, o.takeLogLines())
}

func TestReadinessIsEmitted(t *testing.T) {
	t.Parallel()

	wait := func(reason string) step.Result { return step.Wait(time.Second, reason, "words") }
	cases := map[string]struct {
		results []step.Result
		want    []string
	}{
		"ready at first":               {[]step.Result{step.Done()}, []string{"Normal Connected it answers"}},
		"became ready":                 {[]step.Result{wait("Down"), step.Done()}, []string{"Warning Down words", "Normal Connected it answers"}},
		"still ready":                  {[]step.Result{step.Done(), step.Done()}, []string{"Normal Connected it answers"}},
		"ready for another reason":     {[]step.Result{step.Done(), step.WaitReady(0, "Idle", "x")}, []string{"Normal Connected it answers"}},
		"ceased to be ready":           {[]step.Result{step.Done(), wait("Down")}, []string{"Normal Connected it answers", "Warning Down words"}},
		"still not, for the same":      {[]step.Result{wait("Down"), wait("Down")}, []string{"Warning Down words"}},
		"not ready, for another cause": {[]step.Result{wait("Down"), wait("Denied")}, []string{"Warning Down words", "Warning Denied words"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			o := newReportFixture(t, newWidget())
			o.ready = &step.ReadyEvent{Reason: "Connected", Message: "it answers"}

			for _, result := range tc.results {
				if err := o.reconcileOnce(func(context.Context, *widget) step.Result { return result }); err != nil {
					t.Fatal(err)
				}
			}

			requireEqual(t, "events", tc.want, o.takeEvents())
		})
	}
}

// A step of a deletion list reports when its condition changes, and the end of the deletion is reported when
// the finalizer is removed. Neither is a warning.
func TestDeletionIsReported(t *testing.T) {
	t.Parallel()

	obj := newWidget()
	obj.Finalizers = []string{finalizer, "another"}
	o := newReportFixture(t, obj)
	say := func(ctx context.Context, reason string, on func(context.Context, func())) {
		on(ctx, step.Event{Type: corev1.EventTypeNormal, Reason: reason, Action: "Remove", Message: "x"}.EmitFunc(ctx))
	}

	if err := o.fixture.client.Delete(t.Context(), o.fixture.getWidget(t)); err != nil {
		t.Fatal(err)
	}

	for i, result := range []step.Result{step.Wait(0, "Left", "x"), step.Wait(0, "Left", "y"), step.Done(), step.Done()} {
		err := o.reconcileOnce(func(ctx context.Context, w *widget) step.Result {
			w.Status.MachineID = strings.Repeat("1", i+1) // changes the status in each run

			say(ctx, result.Reason(), step.OnTransition)

			if result.IsDone() {
				say(ctx, "Gone", step.OnFinalized)
			}

			return result
		})
		if err != nil {
			t.Fatal(err)
		}
	}

	requireEqual(t, "events", []string{"Normal Left x", "Normal Done x", "Normal Gone x"}, o.takeEvents())

	if got := o.fixture.getWidget(t).Finalizers; len(got) != 1 {
		t.Errorf("finalizers %v", got)
	}
}
