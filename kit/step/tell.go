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

// OnSaved has do run once the status with this step's changes is written, and not at all
// where there is nothing to write or the write fails: the fact is then on record already,
// or the next pass finds it again. So what is counted or told in do is counted and told
// once, whatever conflicts and repeated passes there are. do must not change the object.
// Outside a step do runs at once.
func OnSaved(ctx context.Context, do func()) {
	if w, ok := ctx.Value(writerKey{}).(*writer); ok {
		w.onSaved = append(w.onSaved, do)

		return
	}

	do()
}

// OnTransition is OnSaved for what a step says each time that it runs: do runs only where
// the write changes the status or the reason of the step's condition.
func OnTransition(ctx context.Context, do func()) {
	if w, ok := ctx.Value(writerKey{}).(*writer); ok {
		w.onTransition = append(w.onTransition, transition{w.condition, do})
	}
}

// Afterwards is OnSaved for what only has to know that the pass is on record: it is no reason
// to write an unhurried pass at once.
func Afterwards(ctx context.Context, do func()) {
	if w, ok := ctx.Value(writerKey{}).(*writer); ok {
		w.afterwards = append(w.afterwards, do)
	}
}

// OnFinalized is OnSaved for steps of a deletion list whose fact is that the object is
// gone: do runs once the finalizer is off.
func OnFinalized(ctx context.Context, do func()) {
	if w, ok := ctx.Value(writerKey{}).(*writer); ok {
		w.onFinalized = append(w.onFinalized, do)
	}
}

// Notice is something that happened to the object of a pass: a Kubernetes event and a
// line in the log.
type Notice struct {
	// Type is corev1.EventTypeNormal (logged as INFO) or EventTypeWarning (WARN).
	Type string
	// Reason and Action are CamelCase words, as events have them.
	Reason, Action string
	// Related is the other object that it is about; may be nil.
	Related client.Object
	// Message for people; it holds no secret.
	Message string
}

// Emit gives what On… takes: it emits the notice as an event of the pass's object, by the
// Runner's Recorder, and as a line in the log.
func (n Notice) Emit(ctx context.Context) func() {
	return func() {
		w, ok := ctx.Value(writerKey{}).(*writer)
		if !ok {
			return
		}

		values := append([]any{"reason", n.Reason}, w.logValues(ctx)...)

		if n.Related != nil {
			values = append(values, "related", client.ObjectKeyFromObject(n.Related).String())
		}

		logAt(ctx, n.Type == corev1.EventTypeWarning, n.Message, values)

		if recorder := w.runner.Recorder; recorder != nil {
			recorder.Eventf(w.obj, related(n.Related), n.Type, n.Reason, n.Action, "%s", n.Message)
		}
	}
}

// related is the object as a recorder takes it: none is nil, and no interface around it.
func related(obj client.Object) runtime.Object {
	if obj == nil {
		return nil
	}

	return obj
}

// logAt writes a line at INFO or WARN, which logr does not have.
func logAt(ctx context.Context, warn bool, message string, values []any) {
	logger := log.FromContext(ctx)
	if warn {
		//nolint:sloglint // the message is what happened, in the words of the event
		slog.New(logr.ToSlogHandler(logger)).WarnContext(ctx, message, values...)

		return
	}

	logger.Info(message, values...)
}

// runAll runs what was to happen after a write, each once.
func runAll(list *[]func()) {
	todo := *list
	*list = nil

	for _, do := range todo {
		do()
	}
}

// changes are the lines that a write of the status is worth.
type changes struct {
	changed []metav1.Condition
	// trouble is the Ready condition of a failed or stalled step, where its cause is new.
	trouble *metav1.Condition
}

// changesOf compares the conditions before a write with those after it.
func changesOf(before, after []metav1.Condition, last Result) changes {
	var out changes

	troubled := last.outcome == outcomeFail || last.outcome == outcomeStall

	for i := range after {
		now := &after[i]

		was := meta.FindStatusCondition(before, now.Type)
		if was != nil && was.Status == now.Status && (was.Reason == now.Reason || now.Type == Ready && !troubled) {
			continue
		}

		switch {
		case now.Type == Ready && troubled:
			out.trouble = now
		case now.Type == Reconciling, now.Type == Stalled:
		case now.Status == metav1.ConditionUnknown && now.Reason == reasonPending:
		case troubled && now.Reason == camel(last.reason) && now.Type != Ready:
		default:
			out.changed = append(out.changed, *now)
		}
	}

	return out
}

// log writes one line for each condition that changed, and one for a new trouble.
func (c changes) log(ctx context.Context, stalled bool, values []any) {
	for i := range c.changed {
		now := &c.changed[i]
		logAt(ctx, false, "condition changed", append([]any{
			"condition", now.Type, "status", string(now.Status), "reason", now.Reason, "message", now.Message,
		}, values...))
	}

	if c.trouble == nil {
		return
	}

	text := "not ready, it is tried again"
	if stalled {
		text = "not ready, a person has to act"
	}

	logAt(ctx, true, text, append([]any{"reason", c.trouble.Reason, "message", c.trouble.Message}, values...))
}

// logged is an error that the log has told already, at the first try that failed so: a
// controller's own line for each try is for DEBUG.
type logged struct{ error }

func (e logged) Unwrap() error { return e.error }

// Logged tells kit/log so.
func (logged) Logged() bool { return true }
