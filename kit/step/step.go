// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

const (
	// defaultResync is how often a stalled object is looked at without any event.
	defaultResync = 10 * time.Minute
	// conflictRetry is how long a run that read a stale object waits for the cache.
	conflictRetry = 100 * time.Millisecond
	// saveTimeout bounds the writing of a status once the run's own time is up.
	saveTimeout = 10 * time.Second

	tracerName = "github.com/hyperfleet/hyperfleet/kit/step"
)

// Object is what Run needs of a custom resource: conditions to write.
// A resource that also has SetObservedGeneration(int64) is told the generation
// that the run has seen.
type Object interface {
	client.Object
	// StatusConditions points at the conditions in the object's status.
	StatusConditions() *[]metav1.Condition
}

// Step is one entry of a controller's list.
type Step[S any] struct {
	// Condition is the type of the condition that reports the step; empty for a step
	// that only shows when it stops the run.
	Condition string
	// Name of the step in metrics, spans and logs. Default: its condition; a step without
	// one must have a name.
	Name string
	// When says whether the step is in the list of this object at all; one that is not has no
	// condition either. It is asked each time, and earlier steps may change its answer. Nil
	// means always.
	When func(S) bool
	// Run does the step's work on the scope S of one reconcile. It may change plain
	// status fields of the object; it must not sleep.
	Run func(context.Context, S) Result
}

// Runner is what the runs of one controller share.
type Runner struct {
	// Client writes the status. Required.
	Client client.Client
	// Controller names the controller in spans, metrics and logs. Required.
	Controller string
	// Clock tells the time. Default: the real clock.
	Clock clock.PassiveClock
	// Metrics takes the duration of each step. Default: none are kept.
	Metrics *Metrics
	// Tracer makes the spans. Default: that of the global provider.
	Tracer trace.Tracer
	// Trace, if set, gives the span that an object's steps are children of, and whose trace the
	// log names: so all that is done for an object is one trace. Where it gives an invalid one,
	// each step begins a trace.
	Trace func(Object) trace.SpanContext
	// Resync is how often a stalled object is looked at again without an event.
	// Default: 10 minutes.
	Resync time.Duration
	// Summarize, if set, is called when a run's conditions are in the object and before its
	// status is written: for what a status says beside conditions, such as a phase.
	Summarize func(Object)
	// LogValues gives what lines in the log name of an object beside its kind, namespace and
	// name, as keys and values. May be nil.
	LogValues func(Object) []any
	// Recorder takes an event for each new cause for which an object is not ready: of a step
	// that failed or stalled. May be nil.
	Recorder events.EventRecorder

	memory memory
}

// Run runs the steps in order on one object, stops at the first that is not done,
// and writes the status; see the package's description. The scope is handed to
// each step and usually holds obj itself: the steps must change that very object.
//
// The returned result and error are what Reconcile returns: an error only for a
// failed step or a failed write, so that the queue backs off.
func Run[S any](ctx context.Context, r *Runner, obj Object, steps []Step[S], scope S) (ctrl.Result, error) {
	if r.memory.behind(obj, r.clock().Now()) {
		return ctrl.Result{RequeueAfter: cacheRetry}, nil
	}

	write, err := newWriter(r, obj, nil)
	if err != nil {
		return ctrl.Result{}, err
	}

	return finish(ctx, r, write, run(ctx, r, obj, steps, scope, write))
}

// run makes one pass over the object, in memory, and gives the result that it ended with.
func run[S any](ctx context.Context, runner *Runner, obj Object, steps []Step[S], scope S, write *writer) Result {
	ctx = runner.traced(ctx, obj)
	now := runner.clock().Now()
	rep := &report{obj: obj, now: metav1.NewTime(now), server: write.conditions}
	last := Done()

	for i, step := range steps {
		if !step.applies(scope) {
			continue
		}

		name := step.name()
		write.condition = step.Condition
		write.tell = func(result Result) {
			write.last = result
			tell(rep, steps[i:], scope, result)
		}
		last = observe(withWriter(ctx, write), runner, obj, name, func(ctx context.Context) Result {
			return step.Run(ctx, scope)
		})

		if interrupted(last) {
			break
		}

		write.tell(last)

		if !last.IsDone() {
			break
		}
	}

	if last.IsDone() {
		rep.summary(last)
	}

	if runner.Summarize != nil && !interrupted(last) {
		runner.Summarize(obj)
	}

	return last
}

// tell puts the result of the first of the steps into the conditions.
func tell[S any](rep *report, steps []Step[S], scope S, result Result) {
	rep.step(steps[0].Condition, result)

	if result.IsDone() {
		return
	}

	for _, later := range steps[1:] {
		if later.applies(scope) {
			rep.pending(later.Condition)
		}
	}

	rep.summary(result)
}

// finish writes the status and turns the last result into the queue's terms.
func finish(ctx context.Context, r *Runner, write *writer, last Result) (ctrl.Result, error) {
	if left, held := write.held(last); held {
		if last.after > 0 {
			left = min(left, last.after)
		}

		return ctrl.Result{RequeueAfter: left}, nil
	}

	// What the steps did has happened, and what they noted of it has to be kept even
	// if the run's time is up.
	saveCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
	defer cancel()

	err := write.save(saveCtx)

	switch {
	case apierrors.IsNotFound(err):
		log.FromContext(ctx).V(1).Info("object is gone, its status was not written")

		return ctrl.Result{}, nil
	case apierrors.IsConflict(err), err == nil && apierrors.IsConflict(last.err):
		return ctrl.Result{RequeueAfter: conflictRetry}, nil
	case err != nil:
		return ctrl.Result{}, errors.Join(last.failure(), err)
	}

	switch last.outcome {
	case outcomeDone:
		return ctrl.Result{}, nil
	case outcomeWait, outcomeRest:
		return ctrl.Result{RequeueAfter: last.after}, nil
	case outcomeStall:
		return ctrl.Result{RequeueAfter: r.resync()}, nil
	default:
		if last.after > 0 {
			return ctrl.Result{RequeueAfter: last.after}, nil
		}

		return ctrl.Result{}, logged{last.failure()}
	}
}

// failure is the error that the queue sees: none unless the step failed.
func (r Result) failure() error {
	if r.outcome != outcomeFail {
		return nil
	}

	return r.err
}

// interrupted says that a step ended because the program is ending or because it
// had read a stale copy of something: neither is news about the object.
func interrupted(last Result) bool {
	return errors.Is(last.err, context.Canceled) || apierrors.IsConflict(last.err)
}

// observe runs one step with its span, its metric and its logger, and makes a
// failure of a panic.
func observe(
	ctx context.Context, runner *Runner, obj client.Object, name string, do func(context.Context) Result,
) (result Result) {
	ctx, span := runner.tracer().Start(ctx, runner.Controller+"/"+name, trace.WithAttributes(
		attribute.String("hyperfleet.controller", runner.Controller),
		attribute.String("hyperfleet.step", name),
		attribute.String("k8s.namespace.name", obj.GetNamespace()),
		attribute.String("hyperfleet.object.name", obj.GetName()),
		attribute.String("hyperfleet.object.uid", string(obj.GetUID())),
	))
	logger := log.FromContext(ctx).WithValues("step", name)
	start := runner.clock().Now()

	defer func() {
		if cause := recover(); cause != nil {
			logger.Error(nil, "step panicked", "panic", fmt.Sprint(cause), "stack", string(debug.Stack()))
			result = Fail(errclass.New(errclass.Permanent, "Panic", "run step %s: panic: %v", name, cause))
		}

		class := result.class()
		span.SetAttributes(
			attribute.String("hyperfleet.outcome", result.outcome),
			attribute.String("hyperfleet.reason", result.reason),
			attribute.String("hyperfleet.error_class", class),
		)

		if result.outcome == outcomeFail {
			span.RecordError(result.err)
			span.SetStatus(codes.Error, result.reason)
		}

		span.End()
		runner.Metrics.observe(runner.Controller, name, result.outcome, class, runner.clock().Since(start))
		logger.V(1).Info("step ended", "outcome", result.outcome, "reason", result.reason, "message", result.message)
	}()

	if name == "" {
		return Fail(errclass.New(errclass.Permanent, "NoName", "run a step without condition and name"))
	}

	result = do(log.IntoContext(ctx, logger))
	if result.outcome == "" {
		result = Fail(errclass.New(errclass.Permanent, "NoResult", "run step %s: it returned the zero result", name))
	}

	return result
}

// traced puts the span that the object's steps are children of into the context.
func (r *Runner) traced(ctx context.Context, obj Object) context.Context {
	if r.Trace == nil {
		return ctx
	}

	parent := r.Trace(obj)
	if !parent.IsValid() {
		return ctx
	}

	return trace.ContextWithRemoteSpanContext(ctx, parent)
}

// applies says whether the step is in the list of the scope's object.
func (s Step[S]) applies(scope S) bool { return s.When == nil || s.When(scope) }

func (s Step[S]) name() string { return cmp.Or(s.Name, s.Condition) }

func (r *Runner) clock() clock.PassiveClock {
	if r.Clock != nil {
		return r.Clock
	}

	return clock.RealClock{}
}

func (r *Runner) resync() time.Duration {
	if r.Resync > 0 {
		return r.Resync
	}

	return defaultResync
}

func (r *Runner) tracer() trace.Tracer {
	if r.Tracer != nil {
		return r.Tracer
	}

	return otel.Tracer(tracerName)
}
