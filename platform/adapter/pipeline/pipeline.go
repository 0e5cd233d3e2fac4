// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"unicode/utf8"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
)

const tracerName = "github.com/hyperfleet/hyperfleet/platform/adapter"

// Options configure a Pipeline. Deployment and Task are required and must be validated.
type Options struct {
	Deployment *adapter.Deployment
	// Task is the compiled task file.
	Task *task.Task
	// Clients are the clients by the name of their transport.
	Clients map[string]transport.Client
	// Keys sign and verify the HMAC of objects. If Keys is nil, as in dry runs, objects have no HMAC.
	Keys *stamp.Keys
	// Kinds are the kinds of which the adapter may have objects. Default: the kinds that the task file renders.
	Kinds *resources.Kinds
	// FrameworkVersion is the version of the program.
	FrameworkVersion string
	// Env are the environment variables that the task file can read.
	Env map[string]string
	// Transport sends the calls to the fleet API and to other servers. Default: the network.
	Transport http.RoundTripper
	// Calls, if set, counts and times the calls.
	Calls *metrics.CallMetrics
	// IncludeValues adds the values of params, captures and payloads to the trace. Use it only for
	// dry runs, and never if the trace is logged.
	IncludeValues bool
	// Clock is the clock of expressions, reports and retries. Default: the real clock.
	Clock clock.Clock
	// Log is the logger, also for the log lines of the task file. Default: slog.Default.
	Log *slog.Logger
}

// Pipeline handles events. It is safe for concurrent use.
type Pipeline struct {
	Options

	// api sends the calls of the task file and the framework's own reports, and reads resources.
	api         *client.Client
	stamper     *stamp.Stamper
	generations *resources.Generations
	// resources runs the resources phase. Tests replace it.
	resources func(context.Context, resources.Input) (resources.Result, error)
	// config and env are the variables of the same names.
	config, env map[string]any
}

// New creates the pipeline of an adapter.
func New(options Options) (*Pipeline, error) {
	options.Clock = cmp.Or[clock.Clock](options.Clock, clock.RealClock{})
	options.Log = cmp.Or(options.Log, slog.Default())
	options.Kinds = cmp.Or(options.Kinds, resources.NewKinds())

	p := &Pipeline{
		Options: options, generations: resources.NewGenerations(), resources: resources.Run,
		stamper: stamp.New(options.Deployment.Adapter.Name, options.Keys),
		config:  task.Redact(options.Deployment), env: map[string]any{},
	}

	for name, value := range options.Env {
		if !utf8.ValidString(value) {
			return nil, fmt.Errorf("environment variable %s: the value is not valid UTF-8", name)
		}

		p.env[name] = value
	}

	var err error

	p.api, err = NewAPIClient(options.Deployment, client.Options{
		Calls: options.Calls, Transport: options.Transport, Clock: options.Clock,
	})

	return p, err
}

// NewAPIClient creates a client of the fleet API. Its calls have the default headers of the deployment, for example a
// tenant's header.
func NewAPIClient(deployment *adapter.Deployment, options client.Options) (*client.Client, error) {
	api := deployment.Clients.HyperFleetAPI
	options.Headers, options.UserAgent, options.Version = api.DefaultHeaders, "hyperfleet-adapter", api.Version
	options.Policy = client.Policy{
		Attempts: api.RetryAttempts, Backoff: api.RetryBackoff, BaseDelay: api.BaseDelay, MaxDelay: api.MaxDelay,
	}

	return client.New(platform.APIClient{
		BaseURL: api.BaseURL, CAFile: api.CAFile, Timeout: api.Timeout, TokenFile: api.Auth.TokenPath,
	}, options)
}

// Handle handles one event. If the context is of WithRequeue, Handle sends no calls if they would repeat the earlier
// ones. If a precondition is then not met, Handle skips the post phase, because an earlier report about the event is
// still true.
func (p *Pipeline) Handle(ctx context.Context, event cloudevents.Event) Result {
	ctx, span := otel.Tracer(tracerName).Start(ctx, "adapter event")
	defer span.End()

	parsed, data, err := parseEvent(event)
	r := p.newRun(parsed, data)

	earlier, isRequeue := EarlierOf(ctx)
	r.isRequeue = isRequeue

	if err != nil {
		r.recordFailure(PhaseEvent, "", err)
		r.result.Err = broker.Poison(fmt.Errorf("event %s: %w", parsed.ID, err))
		r.completeTrace()

		return r.result
	}

	span.SetAttributes(attribute.String("hyperfleet.resource.id", parsed.ResourceID),
		attribute.String("hyperfleet.resource.kind", parsed.Kind), attribute.Int64("hyperfleet.generation", parsed.Generation))

	if earlier != nil {
		if repeated := p.newRun(parsed, data); repeated.repeat(ctx, earlier) {
			return repeated.result
		}
	}

	r.runPhases(ctx)
	r.completeTrace()

	if r.result.Status == Failed {
		span.SetStatus(codes.Error, string(r.result.Phase))
	}

	return r.result
}

// newRun returns the state of an event before its first phase.
func (p *Pipeline) newRun(event EventTrace, data map[string]any) *run {
	r := &run{
		p: p, event: event, vars: p.initialVariables(data), responses: map[callKey]*client.Response{},
		result: Result{Status: Success, Trace: Trace{Event: event}},
	}
	r.vars["adapter"] = r.adapterVariable()

	return r
}

// initialVariables returns the variables of an event before its params are evaluated. Names that get
// their value later are null, so that a step that is not reached reads as absent.
func (p *Pipeline) initialVariables(event map[string]any) map[string]any {
	vars := map[string]any{"event": event, "config": p.config, "env": p.env}

	for i := range p.Task.Params {
		vars[p.Task.Params[i].Name] = nil
	}

	for i := range p.Task.Preconditions {
		precondition := &p.Task.Preconditions[i]
		if precondition.APICall != nil {
			vars[precondition.Name] = nil
		}

		for j := range precondition.Capture {
			vars[precondition.Capture[j].Name] = nil
		}
	}

	return vars
}

// run is the state of one event while it is handled.
type run struct {
	p     *Pipeline
	event EventTrace
	vars  map[string]any

	// hasResource is true if the API has returned the event's resource. isResourceDeleting is then true if
	// the resource is being deleted, and currentGeneration is its generation.
	hasResource, isResourceDeleting bool
	currentGeneration               int64
	// isResourceMissing is true if the resource does not exist in the API.
	isResourceMissing bool
	// skipReason names the precondition that is not met. It is empty if all preconditions are met.
	skipReason string
	// isRequeue is true if the event is handled again because an object has changed.
	isRequeue bool
	// failedStep is the step that failed. isFailureTransient is true if the failure can go away by itself.
	failedStep         string
	isFailureTransient bool
	// accepted are the calls of post actions that have succeeded.
	accepted []client.Call
	// responses are the responses for Result.Handled. They are nil if the event cannot be repeated without calls.
	responses map[callKey]*client.Response
	// calls are the calls with a response in responses, in their order.
	calls []callKey
	// earlier is not nil while the run repeats an event without calls. needsCall is true if it has found that the event
	// needs one.
	earlier   *Handled
	needsCall bool

	result Result
}

// runPhases runs the phases in their order. After a failure, only the post phase runs, so that the task file can report
// the failure. The post phase does not run if there is nothing to report on: the resource is missing, the event is
// outdated, or the event is handled again and its preconditions are not met (see Handle).
func (r *run) runPhases(ctx context.Context) {
	r.evaluateParams(ctx)

	if r.canContinue() {
		r.evaluatePreconditions(ctx)
	}

	if r.canContinue() && r.skipReason == "" {
		r.runResources(ctx)
	}

	if !r.isResourceMissing && !r.isOutdated() && (!r.isRequeue || r.skipReason == "") {
		r.runPost(ctx)
	}

	r.decideResult(ctx)
}

// canContinue reports whether the next phase can run.
func (r *run) canContinue() bool {
	return r.result.Failure == nil && !r.isResourceMissing && !r.isOutdated()
}

// isOutdated reports whether the API has another generation of the resource than the event. If it is later, there is
// a separate event for it. If it is earlier, the database was restored from a backup, and there is no such generation
// any more. An outdated event writes and reports nothing, so that it does not recreate objects that the later event has
// deleted, and does not report a generation that it has not applied.
func (r *run) isOutdated() bool {
	return r.currentGeneration > 0 && r.currentGeneration != r.event.Generation
}

// recordFailure records the first failure. Later failures appear only in the trace.
func (r *run) recordFailure(phase Phase, step string, err error) {
	isTransient := isRetryable(err)
	if r.result.Failure != nil {
		// If a report fails with a transient error, the event is delivered again, whatever failed first.
		r.isFailureTransient = r.isFailureTransient || isTransient

		return
	}

	r.result.Status, r.result.Phase, r.result.Failure = Failed, phase, err
	r.failedStep, r.isFailureTransient = step, isTransient
}

// decideResult reports a failure that the task file did not report, and decides about the status and
// the error for the broker.
func (r *run) decideResult(ctx context.Context) {
	if r.isResourceMissing || r.isOutdated() {
		// A resource that does not exist has no status, and an outdated event reports nothing.
		r.result.Status, r.result.Failure, r.result.Phase = Skipped, nil, ""

		return
	}

	if r.result.Failure == nil {
		if r.skipReason != "" {
			r.result.Status = Skipped
		}

		return
	}

	r.reportFailure(ctx)

	if r.isResourceMissing {
		r.decideResult(ctx)

		return
	}

	if r.isFailureTransient {
		r.result.Err = fmt.Errorf("event of resource %s, generation %d: %w", r.event.ResourceID, r.event.Generation, r.result.Failure)
	}
}

// completeTrace adds the result to the trace.
func (r *run) completeTrace() {
	r.result.Deleting = r.isResourceDeleting
	r.result.Handled = r.handled()

	trace := &r.result.Trace.Result
	trace.Status, trace.Phase = r.result.Status, r.result.Phase

	switch {
	case r.isResourceMissing:
		trace.Reason = ReasonGone
	case r.isOutdated():
		trace.Reason = ReasonStale
	case r.skipReason != "":
		trace.Reason = r.skipReason
	}

	if r.result.Failure != nil {
		trace.Error = r.result.Failure.Error()
	}

	switch {
	case r.result.Err == nil:
		trace.Event = AckDone
	case broker.IsPoison(r.result.Err):
		trace.Event = AckPoison
	default:
		trace.Event = AckRedeliver
	}
}
