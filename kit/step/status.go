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

// ErrOutsideStep is the error of SaveStatus and SaveStatusWithResult if the context does not belong to a step.
var ErrOutsideStep = errors.New("save status: the context does not belong to a step")

// statusPatcher patches an object's status with the difference to the object as it was last read or
// written.
type statusPatcher struct {
	obj Object
	// base is the object as it was last read or written.
	base client.Object
	// applyResult sets lastResult and the conditions according to a result of the current step.
	applyResult func(Result)
	lastResult  Result
	// condition is the condition type of the current step.
	condition  string
	reconciler *Reconciler
	readyEvent *ReadyEvent
	// onSaved, onFinalized and onNextSave run after a write, see OnSaved. If only onNextSave has
	// callbacks, the write may still be deferred.
	onSaved, onFinalized, onNextSave []func()
	onTransition                     []transition
}

// transition is a callback that runs when a condition changes its status or reason.
type transition struct {
	condition string
	do        func()
}

// actionCheck is the action of events about readiness.
const actionCheck = "Check"

type statusPatcherKey struct{}

// newStatusPatcher starts a run for an object. If an earlier run deferred its write, obj is changed
// to the state that the earlier run left.
func newStatusPatcher(r *Reconciler, obj Object, ready *ReadyEvent) (*statusPatcher, error) {
	patcher := &statusPatcher{reconciler: r, obj: obj, readyEvent: ready}

	if err := patcher.resetBase(); err != nil {
		return nil, err
	}

	patcher.onNextSave = r.states.restoreDeferred(obj)

	return patcher, nil
}

// resetBase stores a copy of the current object as the one that the API server has. buildPatch compares with it.
func (p *statusPatcher) resetBase() error {
	base, ok := p.obj.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("copy %T: the copy is not a client object", p.obj)
	}

	p.base = base

	return nil
}

// save patches the status if it has changed. The patch contains the resourceVersion of base. A merge
// patch replaces the conditions as one list, so a patch of a stale copy must fail. The patch also fails, and writes
// nothing, if the CRD lacks a field in it. Otherwise, the API server would drop the field.
func (p *statusPatcher) save(ctx context.Context) error {
	diff, err := p.buildPatch()
	if err != nil {
		return err
	}

	if diff == nil {
		p.reconciler.states.dropDeferred(p.obj)

		return nil
	}

	patch, err := withResourceVersion(diff, p.base.GetResourceVersion())
	if err != nil {
		return fmt.Errorf("compare status of %s: %w", client.ObjectKeyFromObject(p.obj), err)
	}

	before := p.serverConditions()

	strict := client.FieldValidation(metav1.FieldValidationStrict)
	if err := p.reconciler.Client.Status().Patch(ctx, p.obj, patch, strict); err != nil {
		return fmt.Errorf("patch status of %s: %w", client.ObjectKeyFromObject(p.obj), p.explainUnknownFields(err))
	}

	p.reconciler.states.recordWrite(p.obj, p.reconciler.clock().Now())
	p.afterWrite(ctx, before)

	return p.resetBase()
}

// buildPatch returns the changes of the object as a merge patch, or nil if nothing has changed.
func (p *statusPatcher) buildPatch() ([]byte, error) {
	// Most runs change nothing. DeepEqual is cheaper than encoding JSON.
	if reflect.DeepEqual(p.base, p.obj) {
		return nil, nil
	}

	diff, err := client.MergeFrom(p.base).Data(p.obj)
	if err != nil {
		return nil, fmt.Errorf("compare status of %s: %w", client.ObjectKeyFromObject(p.obj), err)
	}

	if bytes.Equal(diff, []byte("{}")) {
		return nil, nil
	}

	return diff, nil
}

// withResourceVersion returns the merge patch with a resourceVersion. The API server rejects the patch
// with a conflict if the object has another version.
func withResourceVersion(diff []byte, version string) (client.Patch, error) {
	var patch, metadata map[string]json.RawMessage
	if err := json.Unmarshal(diff, &patch); err != nil {
		return nil, err
	}

	if data := patch["metadata"]; data != nil {
		if err := json.Unmarshal(data, &metadata); err != nil {
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

// afterWrite logs the changes of a write and runs the callbacks that waited for it.
func (p *statusPatcher) afterWrite(ctx context.Context, before []metav1.Condition) {
	p.reportChanges(ctx, before)
	runCallbacks(&p.onSaved)
	runCallbacks(&p.onNextSave)
}

// deferWrite keeps the changes of a run in memory instead of writing them, if the result allows that
// and the run registered no callback with OnSaved or OnTransition. It returns the time after which
// the changes must be written, and whether the write was deferred.
func (p *statusPatcher) deferWrite(last Result) (delay time.Duration, isDeferred bool) {
	if last.writeDelay == 0 || len(p.onSaved)+len(p.onTransition) > 0 {
		return 0, false
	}

	// Without changes, nothing has to be deferred. DeepEqual is cheaper than encoding JSON.
	if equality.Semantic.DeepEqual(p.base, p.obj) {
		return 0, false
	}

	delay = p.reconciler.states.deferWrite(p.obj, p.base, last, p.onNextSave, p.reconciler.clock().Now())

	return delay, delay > 0
}

// serverConditions returns the conditions of base.
func (p *statusPatcher) serverConditions() []metav1.Condition {
	if base, ok := p.base.(Object); ok {
		return *base.StatusConditions()
	}

	return nil
}

// reportChanges logs the conditions that a write has changed, runs the callbacks of the transitions,
// and emits an event if the object's readiness has changed.
func (p *statusPatcher) reportChanges(ctx context.Context, before []metav1.Condition) {
	after := *p.obj.StatusConditions()
	diffConditions(before, after, p.lastResult).log(ctx, p.lastResult.IsStalled(), p.logValues(ctx))

	for _, t := range p.onTransition {
		previous, current := meta.FindStatusCondition(before, t.condition), meta.FindStatusCondition(after, t.condition)
		if current != nil && (previous == nil || previous.Status != current.Status || previous.Reason != current.Reason) {
			t.do()
		}
	}

	p.onTransition = nil

	if p.reconciler.Recorder != nil && p.obj.GetDeletionTimestamp().IsZero() {
		p.emitReadyEvent(meta.FindStatusCondition(before, Ready), meta.FindStatusCondition(after, Ready))
	}
}

// emitReadyEvent emits an event if the object has become ready, or if it is not ready for a new
// reason. An object that waits gets an event only if the Plan has a ReadyEvent.
func (p *statusPatcher) emitReadyEvent(previous, current *metav1.Condition) {
	if current == nil || previous != nil && previous.Status == current.Status && previous.Reason == current.Reason {
		return
	}

	event, recorder := p.readyEvent, p.reconciler.Recorder

	switch {
	case current.Status == metav1.ConditionTrue:
		if event != nil && (previous == nil || previous.Status != metav1.ConditionTrue) {
			recorder.Eventf(p.obj, nil, corev1.EventTypeNormal, event.Reason, actionCheck, "%s", event.Message)
		}
	case event != nil, p.lastResult.IsFailed(), p.lastResult.IsStalled():
		recorder.Eventf(p.obj, nil, corev1.EventTypeWarning, current.Reason, actionCheck, "%s", current.Message)
	}
}

// logValues returns the keys and values that log lines have for the object and its trace.
func (p *statusPatcher) logValues(ctx context.Context) []any {
	var values []any
	if p.reconciler.LogValues != nil {
		values = p.reconciler.LogValues(p.obj)
	}

	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		values = append(values, "traceId", span.TraceID().String())
	}

	return values
}

func withStatusPatcher(ctx context.Context, patcher *statusPatcher) context.Context {
	return context.WithValue(ctx, statusPatcherKey{}, patcher)
}

// SaveStatus writes the object's status immediately, from within a step. Use it for a fact that must
// be recorded before the step acts on it, such as the id of a machine that the step is about to
// create. If SaveStatus returns an error, the step must not act and must return Fail(err). If the
// error is a conflict, the object is reconciled again with a fresh copy, and no condition reports a
// failure.
func SaveStatus(ctx context.Context) error {
	patcher, ok := ctx.Value(statusPatcherKey{}).(*statusPatcher)
	if !ok {
		return ErrOutsideStep
	}

	return patcher.save(ctx)
}

// SaveStatusWithResult sets the conditions for the result that the step is about to return, and then
// writes the status as SaveStatus does. Call it before an action after which the status can't be written
// any more, such as deleting the object.
func SaveStatusWithResult(ctx context.Context, result Result) error {
	patcher, ok := ctx.Value(statusPatcherKey{}).(*statusPatcher)
	if !ok {
		return ErrOutsideStep
	}

	patcher.applyResult(result)

	return patcher.save(ctx)
}

// SavedObject returns the object of a step as the API server has it, as far as this process knows. Deferred changes
// are not in it. The result must not be changed. It is nil if ctx is not the context of a step.
func SavedObject(ctx context.Context) client.Object {
	patcher, ok := ctx.Value(statusPatcherKey{}).(*statusPatcher)
	if !ok {
		return nil
	}

	return patcher.base
}
