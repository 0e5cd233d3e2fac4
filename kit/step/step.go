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
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	// defaultResync is the interval after which a stalled object is reconciled without an event.
	defaultResync = 10 * time.Minute
	// conflictRetryDelay is the time after which an object is reconciled again if its run read a
	// stale copy. The cache usually has the current version by then.
	conflictRetryDelay = 100 * time.Millisecond
	// saveTimeout bounds the write of a status at the end of a run. If the context of the run has ended, the
	// bound is retry.EndGrace.
	saveTimeout = 10 * time.Second

	tracerName = "github.com/hyperfleet/hyperfleet/kit/step"
)

// Object is a custom resource whose conditions this package can write. If the resource also has a
// method SetObservedGeneration(int64), each run calls the method with the generation that it
// reconciled.
type Object interface {
	client.Object
	// StatusConditions returns a pointer to the conditions in the object's status.
	StatusConditions() *[]metav1.Condition
}

// Step is one entry of a controller's list.
type Step[S any] struct {
	// Condition is the type of the condition that reports the step. If it is empty, the step is
	// visible only in Ready, Reconciling and Stalled, when it stops the run.
	Condition string
	// Name is the step's name in metrics, spans and logs. Default: Condition. A step without a
	// condition must have a name.
	Name string
	// AppliesTo returns whether the step is in the list of this object. If it returns false, the
	// step neither runs nor reports a condition. It is called in each run, and earlier steps may
	// change its result. If it is nil, the step is always in the list.
	AppliesTo func(S) bool
	// Run does the step's work on the scope S of one reconcile. It may change plain
	// status fields of the object. It must not sleep.
	Run func(context.Context, S) Result
}

// Reconciler holds what the runs of one controller share.
type Reconciler struct {
	// Client writes the status. Required.
	Client client.Client
	// Controller names the controller in spans, metrics and logs. Required.
	Controller string
	// Clock returns the current time. Default: the real clock.
	Clock clock.PassiveClock
	// Metrics observes the duration of each step. Default: durations are not observed.
	Metrics *Metrics
	// Tracer creates the spans. Default: a tracer of the global provider.
	Tracer trace.Tracer
	// ParentSpan, if set, returns the parent of the spans of an object's steps, so that all runs for
	// an object belong to one trace. Log lines name that trace. If the returned span context is
	// invalid, each step starts its own trace.
	ParentSpan func(Object) trace.SpanContext
	// Resync is the interval after which a stalled object is reconciled without an event.
	// Default: 10 minutes.
	Resync time.Duration
	// Summarize, if set, is called after a run has set the object's conditions and before the
	// status is written. It sets status fields that derive from the conditions, such as a phase.
	Summarize func(Object)
	// LogValues returns keys and values that log lines have in addition to the object's kind,
	// namespace and name. It may be nil.
	LogValues func(Object) []any
	// Recorder emits an event for each new cause for which an object is not ready because a step
	// failed or stalled. It may be nil.
	Recorder events.EventRecorder

	states objectStates
}

// ReconcileSteps runs the steps in order on one object, stops at the first step that is not done,
// and writes the status. See the package description. ReconcileSteps passes the scope to each step.
// The scope usually holds obj itself, because the steps must change this very object.
//
// A controller's Reconcile method returns the result and the error as they are. The error is set
// only for a failed step or a failed write, so that the queue backs off. If the cache has not yet
// received this process's last write of the object, ReconcileSteps runs no step and requeues.
func ReconcileSteps[S any](ctx context.Context, r *Reconciler, obj Object, steps []Step[S], scope S) (ctrl.Result, error) {
	if r.states.isCacheBehind(obj, r.clock().Now()) {
		return ctrl.Result{RequeueAfter: cacheRetryDelay}, nil
	}

	patcher, err := newStatusPatcher(r, obj, nil)
	if err != nil {
		return ctrl.Result{}, err
	}

	return finishReconcile(ctx, r, patcher, runSteps(ctx, r, obj, steps, scope, patcher))
}

// runSteps runs the steps and sets the conditions in obj. It writes nothing to the API server
// unless a step calls SaveStatus. It returns the result of the step that ended the run.
func runSteps[S any](
	ctx context.Context, runner *Reconciler, obj Object, steps []Step[S], scope S, patcher *statusPatcher,
) Result {
	ctx = runner.withParentSpan(ctx, obj)
	now := runner.clock().Now()
	rep := &report{obj: obj, now: metav1.NewTime(now), serverConditions: patcher.serverConditions}
	last := Done()

	for i, step := range steps {
		if !step.applies(scope) {
			continue
		}

		name := step.name()
		patcher.condition = step.Condition
		patcher.applyResult = func(result Result) {
			patcher.lastResult = result
			applyResult(rep, steps[i:], scope, result)
		}
		last = runStep(withStatusPatcher(ctx, patcher), runner, obj, name, func(ctx context.Context) Result {
			return step.Run(ctx, scope)
		})

		if isInterrupted(last) {
			break
		}

		patcher.applyResult(last)

		if !last.IsDone() {
			break
		}
	}

	if last.IsDone() {
		rep.setSummary(last)
	}

	if runner.Summarize != nil && !isInterrupted(last) {
		runner.Summarize(obj)
	}

	return last
}

// applyResult sets the conditions according to the result of steps[0], which has just run. The rest
// of the steps have not run.
func applyResult[S any](rep *report, steps []Step[S], scope S, result Result) {
	rep.setStep(steps[0].Condition, result)

	if result.IsDone() {
		return
	}

	for _, unreached := range steps[1:] {
		if unreached.applies(scope) {
			rep.setPending(unreached.Condition)
		}
	}

	rep.setSummary(result)
}

// finishReconcile writes the status, or defers the write, and converts the last result into a
// ctrl.Result and an error for the queue.
func finishReconcile(ctx context.Context, r *Reconciler, patcher *statusPatcher, last Result) (ctrl.Result, error) {
	if delay, isDeferred := patcher.deferWrite(last); isDeferred {
		if last.requeueAfter > 0 {
			delay = min(delay, last.requeueAfter)
		}

		return ctrl.Result{RequeueAfter: delay}, nil
	}

	// The steps may already have changed external systems. Their records of these changes must be
	// saved even if the context of the run has ended.
	graced, cancelGrace := retry.WithGrace(ctx, retry.EndGrace)
	defer cancelGrace()

	saveCtx, cancel := context.WithTimeout(graced, saveTimeout)
	defer cancel()

	err := patcher.save(saveCtx)
	if isCRDOutdated(err) {
		last, err = patcher.saveCRDOutdated(saveCtx, err)
	}

	switch {
	case apierrors.IsNotFound(err):
		log.FromContext(ctx).V(1).Info("object no longer exists, status was not written")

		return ctrl.Result{}, nil
	case apierrors.IsConflict(err), err == nil && apierrors.IsConflict(last.err):
		return ctrl.Result{RequeueAfter: conflictRetryDelay}, nil
	case err != nil:
		return ctrl.Result{}, errors.Join(last.queueError(), err)
	}

	switch last.outcome {
	case outcomeDone:
		return ctrl.Result{}, nil
	case outcomeWait, outcomeWaitReady:
		return ctrl.Result{RequeueAfter: last.requeueAfter}, nil
	case outcomeStall:
		return ctrl.Result{RequeueAfter: ChooseSooner(last.requeueAfter, r.resync())}, nil
	default:
		if last.requeueAfter > 0 {
			return ctrl.Result{RequeueAfter: last.requeueAfter}, nil
		}

		return ctrl.Result{}, loggedError{last.queueError()}
	}
}

// queueError returns the error that the controller's queue receives. It is nil unless the step failed.
func (r Result) queueError() error {
	if r.outcome != outcomeFail {
		return nil
	}

	return r.err
}

// isInterrupted returns whether a step ended because the process is shutting down or because the
// step had read a stale copy of an object. Neither changes the conditions of the object.
func isInterrupted(last Result) bool {
	return errors.Is(last.err, context.Canceled) || apierrors.IsConflict(last.err)
}

// runStep runs one step with a span, a metric and a logger of its own. It converts a panic into a
// failed result.
func runStep(
	ctx context.Context, runner *Reconciler, obj client.Object, name string, do func(context.Context) Result,
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

		class := result.errorClass()
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
		runner.Metrics.observeStep(runner.Controller, name, result.outcome, class, runner.clock().Since(start))
		logger.V(1).Info("step ended", "outcome", result.outcome, "reason", result.reason, "message", result.message)
	}()

	if name == "" {
		return Fail(errclass.New(errclass.Permanent, "NoName", "run step: it has neither a condition nor a name"))
	}

	result = do(log.IntoContext(ctx, logger))
	if result.outcome == "" {
		result = Fail(errclass.New(errclass.Permanent, "NoResult", "run step %s: the step returned the zero result", name))
	}

	return result
}

// withParentSpan returns a context with the parent span of the object's steps. Without a valid
// parent span, it returns ctx.
func (r *Reconciler) withParentSpan(ctx context.Context, obj Object) context.Context {
	if r.ParentSpan == nil {
		return ctx
	}

	parent := r.ParentSpan(obj)
	if !parent.IsValid() {
		return ctx
	}

	return trace.ContextWithRemoteSpanContext(ctx, parent)
}

// applies returns whether the step is in the list of the scope's object.
func (s Step[S]) applies(scope S) bool { return s.AppliesTo == nil || s.AppliesTo(scope) }

func (s Step[S]) name() string { return cmp.Or(s.Name, s.Condition) }

func (r *Reconciler) clock() clock.PassiveClock {
	if r.Clock != nil {
		return r.Clock
	}

	return clock.RealClock{}
}

func (r *Reconciler) resync() time.Duration {
	if r.Resync > 0 {
		return r.Resync
	}

	return defaultResync
}

func (r *Reconciler) tracer() trace.Tracer {
	if r.Tracer != nil {
		return r.Tracer
	}

	return otel.Tracer(tracerName)
}
