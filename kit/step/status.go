// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ErrOutsideStep is what Save returns to a caller that no Run has called.
var ErrOutsideStep = errors.New("save status: the context is not that of a step")

// writer patches an object's status with the difference to what was last read or
// written.
type writer struct {
	obj  Object
	base client.Object
	// tell puts a result of the step that runs into the conditions; last is the result.
	tell func(Result)
	last Result
	// condition of the step that runs.
	condition string
	runner    *Runner
	ready     *ReadyEvent
	// onSaved and onFinalized run after the writes; see OnSaved. afterwards do, too, and are
	// no reason for a write.
	onSaved, onFinalized, afterwards []func()
	onTransition                     []transition
}

// transition is what is to happen when a condition changes its status or reason.
type transition struct {
	condition string
	do        func()
}

// actionCheck is the action in events about readiness.
const actionCheck = "Check"

type writerKey struct{}

// newWriter begins a pass over an object: with what an earlier one has found and not written.
func newWriter(r *Runner, obj Object, ready *ReadyEvent) (*writer, error) {
	w := &writer{runner: r, obj: obj, ready: ready}

	if err := w.rebase(); err != nil {
		return nil, err
	}

	r.memory.resume(obj)

	return w, nil
}

// rebase takes the object as it is now as what the server has.
func (w *writer) rebase() error {
	base, ok := w.obj.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("copy %T: the copy is not a client object", w.obj)
	}

	w.base = base

	return nil
}

// save sends the difference, if there is one. The patch carries the resourceVersion
// as read: conditions are one list to a merge patch, and a stale copy must not
// replace it.
func (w *writer) save(ctx context.Context) error {
	diff, err := w.diff()
	if err != nil {
		return err
	}

	if diff == nil {
		w.runner.memory.release(w.obj)

		return nil
	}

	patch, err := locked(diff, w.base.GetResourceVersion())
	if err != nil {
		return fmt.Errorf("compare status of %s: %w", client.ObjectKeyFromObject(w.obj), err)
	}

	before := w.conditions()

	if err := w.runner.Client.Status().Patch(ctx, w.obj, patch); err != nil {
		return fmt.Errorf("patch status of %s: %w", client.ObjectKeyFromObject(w.obj), err)
	}

	w.runner.memory.wrote(w.obj, w.runner.clock().Now())
	w.written(ctx, before)

	return w.rebase()
}

// diff is what there is to write, as a merge patch; nil if there is nothing.
func (w *writer) diff() ([]byte, error) {
	// Most passes change nothing, which needs no JSON to see.
	if reflect.DeepEqual(w.base, w.obj) {
		return nil, nil
	}

	diff, err := client.MergeFrom(w.base).Data(w.obj)
	if err != nil {
		return nil, fmt.Errorf("compare status of %s: %w", client.ObjectKeyFromObject(w.obj), err)
	}

	if bytes.Equal(diff, []byte("{}")) {
		return nil, nil
	}

	return diff, nil
}

// locked is a merge patch that counts only for the version that it was made of.
func locked(diff []byte, version string) (client.Patch, error) {
	var patch, metadata map[string]json.RawMessage
	if err := json.Unmarshal(diff, &patch); err != nil {
		return nil, err
	}

	if has := patch["metadata"]; has != nil {
		if err := json.Unmarshal(has, &metadata); err != nil {
			return nil, err
		}
	}

	if metadata == nil {
		metadata = map[string]json.RawMessage{}
	}

	metadata["resourceVersion"] = json.RawMessage(strconv.Quote(version))

	out, err := json.Marshal(metadata)
	if err != nil {
		return nil, err
	}

	patch["metadata"] = out
	out, err = json.Marshal(patch)

	return client.RawPatch(types.MergePatchType, out), err
}

// written tells what a write was worth.
func (w *writer) written(ctx context.Context, before []metav1.Condition) {
	w.tellChanges(ctx, before)
	runAll(&w.onSaved)
	runAll(&w.afterwards)
}

// held keeps the outcome of a pass in memory instead of writing it, where the pass was in no
// hurry and has nothing to tell. It gives when the outcome is to be written at the latest.
func (w *writer) held(last Result) (time.Duration, bool) {
	if !last.unhurried || len(w.onSaved)+len(w.onTransition) > 0 {
		return 0, false
	}

	// What is to be written can wait as well: to see that there is something needs no JSON.
	if equality.Semantic.DeepEqual(w.base, w.obj) {
		return 0, false
	}

	left := w.runner.memory.hold(w.obj, w.runner.clock().Now())

	return left, left > 0
}

// conditions gives those that the server had before.
func (w *writer) conditions() []metav1.Condition {
	if base, ok := w.base.(Object); ok {
		return *base.StatusConditions()
	}

	return nil
}

// tellChanges logs what a write has changed, and emits what became of the object's readiness.
func (w *writer) tellChanges(ctx context.Context, before []metav1.Condition) {
	after := *w.obj.StatusConditions()
	changesOf(before, after, w.last).log(ctx, w.last.IsStalled(), w.logValues(ctx))

	for _, one := range w.onTransition {
		was, now := meta.FindStatusCondition(before, one.condition), meta.FindStatusCondition(after, one.condition)
		if now != nil && (was == nil || was.Status != now.Status || was.Reason != now.Reason) {
			one.do()
		}
	}

	w.onTransition = nil

	if w.runner.Recorder != nil && w.obj.GetDeletionTimestamp().IsZero() {
		w.announce(meta.FindStatusCondition(before, Ready), meta.FindStatusCondition(after, Ready))
	}
}

// announce emits an event where an object has become ready, or why it is not.
func (w *writer) announce(was, now *metav1.Condition) {
	if now == nil || was != nil && was.Status == now.Status && was.Reason == now.Reason {
		return
	}

	told, recorder := w.ready, w.runner.Recorder

	switch {
	case now.Status == metav1.ConditionTrue:
		if told != nil && (was == nil || was.Status != metav1.ConditionTrue) {
			recorder.Eventf(w.obj, nil, corev1.EventTypeNormal, told.Reason, actionCheck, "%s", told.Message)
		}
	case told != nil, w.last.IsFailed(), w.last.IsStalled():
		recorder.Eventf(w.obj, nil, corev1.EventTypeWarning, now.Reason, actionCheck, "%s", now.Message)
	}
}

// logValues are what lines in the log name of the object, and of the trace.
func (w *writer) logValues(ctx context.Context) []any {
	var values []any
	if w.runner.LogValues != nil {
		values = w.runner.LogValues(w.obj)
	}

	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		values = append(values, "traceId", span.TraceID().String())
	}

	return values
}

func withWriter(ctx context.Context, w *writer) context.Context {
	return context.WithValue(ctx, writerKey{}, w)
}

// Save writes the object's status at once, from within a step: for a fact that
// must be on record before the step acts on it, such as the id of a machine about
// to be made. A step that gets an error must not act, and returns Fail(err); a
// conflict then leads to a quiet second run on a fresh copy.
func Save(ctx context.Context) error {
	w, ok := ctx.Value(writerKey{}).(*writer)
	if !ok {
		return ErrOutsideStep
	}

	return w.save(ctx)
}

// SaveAs is Save with the conditions as the result has them, which the step is about to
// return. It is for a step whose act makes its copy of the object stale, such as deleting
// the object: what the step returns after that could not be written any more.
func SaveAs(ctx context.Context, result Result) error {
	w, ok := ctx.Value(writerKey{}).(*writer)
	if !ok {
		return ErrOutsideStep
	}

	w.tell(result)

	return w.save(ctx)
}
