// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step

import (
	"context"
	"log/slog"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// OnSaved registers a callback that runs after the status with this step's changes has been written. If nothing
// has to be written, the callback does not run, because the status already records the fact. If the write
// fails, the callback does not run either, because the next run observes the fact again. Therefore a callback
// can count or report each fact exactly once, despite conflicts and repeated runs. It must not change the
// object. If ctx is not the context of a step, OnSaved calls it immediately.
func OnSaved(ctx context.Context, callback func()) {
	if patcher, ok := ctx.Value(statusPatcherKey{}).(*statusPatcher); ok {
		patcher.onSaved = append(patcher.onSaved, callback)

		return
	}

	callback()
}

// OnTransition registers a callback that runs after the status has been written, but only if that write changes
// the status or the reason of the step's condition. A step can therefore call OnTransition in every run. If ctx
// is not the context of a step, OnTransition does nothing.
func OnTransition(ctx context.Context, callback func()) {
	if patcher, ok := ctx.Value(statusPatcherKey{}).(*statusPatcher); ok {
		patcher.onTransition = append(patcher.onTransition, transition{patcher.condition, callback})
	}
}

// OnNextSave registers a callback that runs after the status with this step's changes has been written. Unlike
// OnSaved, it does not force a write that the step's result defers (Result.DeferWrite): the callback then runs
// after the write that contains the changes. If that write never happens, for example because another client
// has changed the object, the callback does not run, and the next run observes the facts again. If ctx is not
// the context of a step, OnNextSave does nothing.
func OnNextSave(ctx context.Context, callback func()) {
	if patcher, ok := ctx.Value(statusPatcherKey{}).(*statusPatcher); ok {
		patcher.onNextSave = append(patcher.onNextSave, callback)
	}
}

// OnFinalized registers a callback that runs after Finalize has removed the finalizer. Use it in the steps of a
// deletion list for facts that depend on the deletion of the object. If ctx is not the context of a step,
// OnFinalized does nothing.
func OnFinalized(ctx context.Context, callback func()) {
	if patcher, ok := ctx.Value(statusPatcherKey{}).(*statusPatcher); ok {
		patcher.onFinalized = append(patcher.onFinalized, callback)
	}
}

// Event is a Kubernetes event about the object of a run, and the log line for the event.
type Event struct {
	// Type is corev1.EventTypeNormal (logged as INFO) or EventTypeWarning (WARN).
	Type string
	// Reason and Action are CamelCase words.
	Reason, Action string
	// Related is a second object that the event concerns. It may be nil.
	Related client.Object
	// Message is for people. It must not contain a secret.
	Message string
}

// EmitFunc returns a callback for OnSaved, OnTransition, OnNextSave or OnFinalized. The callback emits
// the event with the Recorder of the Reconciler, and writes a log line. If ctx is not the context of a
// step, the callback does nothing.
func (n Event) EmitFunc(ctx context.Context) func() {
	writeLog := n.LogFunc(ctx)

	return func() {
		writeLog()

		patcher, ok := ctx.Value(statusPatcherKey{}).(*statusPatcher)
		if ok && patcher.reconciler.Recorder != nil {
			patcher.reconciler.Recorder.Eventf(patcher.obj, toRuntimeObject(n.Related), n.Type, n.Reason, n.Action, "%s", n.Message)
		}
	}
}

// LogFunc returns a callback like that of EmitFunc, which only writes the log line. Use it if nobody has to act on the event,
// and the event is recorded in another object.
func (n Event) LogFunc(ctx context.Context) func() {
	return func() {
		patcher, ok := ctx.Value(statusPatcherKey{}).(*statusPatcher)
		if !ok {
			return
		}

		values := append([]any{"reason", n.Reason}, patcher.logValues(ctx)...)

		if n.Related != nil {
			values = append(values, "related", client.ObjectKeyFromObject(n.Related).String())
		}

		logAt(ctx, n.Type == corev1.EventTypeWarning, n.Message, values)
	}
}

// toRuntimeObject converts obj for a recorder. It returns a nil interface for a nil obj.
func toRuntimeObject(obj client.Object) runtime.Object {
	if obj == nil {
		return nil
	}

	return obj
}

// asWarning and asInfo are the values of the parameter isWarning.
const asWarning, asInfo = true, false

// logAt writes a line at INFO or WARN. It uses slog for WARN, because logr has no such level.
func logAt(ctx context.Context, isWarning bool, message string, values []any) {
	logger := log.FromContext(ctx)
	if isWarning {
		//nolint:sloglint // the message is that of the event
		slog.New(logr.ToSlogHandler(logger)).WarnContext(ctx, message, values...)

		return
	}

	logger.Info(message, values...)
}

// runCallbacks empties the list and calls each function in it.
func runCallbacks(list *[]func()) {
	callbacks := *list
	*list = nil

	for _, callback := range callbacks {
		callback()
	}
}

// changes are the condition changes of a status write that are logged.
type changes struct {
	changed []metav1.Condition
	// failure is the Ready condition if a step failed or stalled for a new cause. Otherwise it is nil.
	failure *metav1.Condition
}

// diffConditions compares the conditions before a write with the conditions after it. It leaves out
// Reconciling, Stalled, pending conditions, and conditions that repeat the reason of a failure.
func diffConditions(before, after []metav1.Condition, last Result) changes {
	var out changes

	hasFailed := last.outcome == outcomeFail || last.outcome == outcomeStall

	for i := range after {
		current := &after[i]

		previous := meta.FindStatusCondition(before, current.Type)
		if previous != nil && previous.Status == current.Status &&
			(previous.Reason == current.Reason || current.Type == Ready && !hasFailed) {
			continue
		}

		switch {
		case current.Type == Ready && hasFailed:
			out.failure = current
		case current.Type == Reconciling, current.Type == Stalled:
			// Ready says the same.
		case current.Status == metav1.ConditionUnknown && current.Reason == reasonPending:
			// Nothing is known yet.
		case hasFailed && current.Reason == sanitizeReason(last.reason) && current.Type != Ready:
			// Ready reports the failure.
		default:
			out.changed = append(out.changed, *current)
		}
	}

	return out
}

// log writes one line for each condition that changed, and one line for a new failure.
func (c changes) log(ctx context.Context, isStalled bool, values []any) {
	for i := range c.changed {
		condition := &c.changed[i]
		logAt(ctx, asInfo, "condition changed", append([]any{
			"condition", condition.Type, "status", string(condition.Status), "reason", condition.Reason,
			"message", condition.Message,
		}, values...))
	}

	if c.failure == nil {
		return
	}

	text := "object is not ready, retrying"
	if isStalled {
		text = "object is not ready, a person has to act"
	}

	logAt(ctx, asWarning, text, append([]any{"reason", c.failure.Reason, "message", c.failure.Message}, values...))
}

// loggedError is an error that the package logged at the first attempt that failed for this cause.
// kit/log writes the line that controller-runtime logs for each further attempt at DEBUG.
type loggedError struct{ error }

func (e loggedError) Unwrap() error { return e.error }

// Logged returns true. kit/log looks for this method.
func (loggedError) Logged() bool { return true }
