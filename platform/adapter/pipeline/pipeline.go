// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/platform/adapter/httpcall"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/platform/client"
)

const tracerName = "github.com/hyperfleet/hyperfleet/platform/adapter"

// Options of New.
type Options struct {
	// Task is what to do with events.
	Task *task.Task
	// Identity of the adapter, for reports and the variable adapter.
	Identity adapter.Identity
	// FrameworkVersion is the program's.
	FrameworkVersion string
	// HTTP makes the calls of the task file.
	HTTP *httpcall.Client
	// API takes the framework's own reports, and says whether a resource is gone.
	API *client.Client
	// Resources is the resources phase.
	Resources func(context.Context, Work) (resources.Result, error)
	// Config is the deployment configuration without secrets, and Env the environment
	// variables that it lists: the variables config and env.
	Config map[string]any
	Env    map[string]string
	// Values puts the values of params, captures and payloads into the trace: for dry
	// runs, never for logs.
	Values bool
	// Clock. Default: the real one.
	Clock clock.PassiveClock
	// Log of the task file's own lines. Default: slog.Default.
	Log *slog.Logger
}

// Work is what the resources phase is given.
type Work struct {
	// ResourceID and Generation are the event's.
	ResourceID string
	Generation int64
	// Deleting says that the API's resource is being deleted.
	Deleting bool
	// Vars are the variables of CEL and templates, but for resources.
	Vars map[string]any
}

// Pipeline handles events. It may be used from any goroutine.
type Pipeline struct {
	Options

	env map[string]any
}

// New checks that everything is there.
func New(options Options) (*Pipeline, error) {
	if options.Task == nil || options.HTTP == nil || options.API == nil || options.Resources == nil {
		return nil, errors.New("make pipeline: it needs a task, calls, the fleet API and a resources phase")
	}

	options.Clock = cmp.Or[clock.PassiveClock](options.Clock, clock.RealClock{})
	options.Log = cmp.Or(options.Log, slog.Default())

	p := &Pipeline{Options: options, env: map[string]any{}}
	for name, value := range options.Env {
		p.env[name] = value
	}

	if p.Config == nil {
		p.Config = map[string]any{}
	}

	return p, nil
}

// Handle handles one event. Of a Look whose preconditions are unmet it reports nothing:
// there is nothing new to say, and what was reported before stays true.
func (p *Pipeline) Handle(ctx context.Context, event cloudevents.Event) Result {
	ctx, span := otel.Tracer(tracerName).Start(ctx, "adapter event")
	defer span.End()

	r := &run{p: p, result: Result{Status: Success, Trace: Trace{Event: EventTrace{ID: event.ID(), Type: event.Type()}}}}

	about, err := parse(event)
	if err != nil {
		r.fail(PhaseEvent, "", err)
		r.result.Err = broker.Poison(fmt.Errorf("event %s: %w", event.ID(), err))
		r.finish()

		return r.result
	}

	span.SetAttributes(attribute.String("hyperfleet.resource.id", about.id),
		attribute.String("hyperfleet.resource.kind", about.kind), attribute.Int64("hyperfleet.generation", about.generation))

	r.about, r.look = about, isLook(ctx)
	r.result.Trace.Event.ResourceID, r.result.Trace.Event.Kind = about.id, about.kind
	r.result.Trace.Event.Generation = about.generation
	r.log = p.Log.With("event", event.ID(), "resourceId", about.id, "kind", about.kind, "generation", about.generation)
	r.vars = p.variables(about)
	r.vars["adapter"] = r.adapter()

	r.phases(ctx)
	r.finish()

	if r.result.Status == Failed {
		span.SetStatus(codes.Error, string(r.result.Phase))
	}

	return r.result
}

type lookKey struct{}

// Look marks the handling of an event again because an object has changed.
func Look(ctx context.Context) context.Context { return context.WithValue(ctx, lookKey{}, true) }

func isLook(ctx context.Context) bool { return ctx.Value(lookKey{}) != nil }

// variables are those of an event before its params are taken. Names that get their
// value later are there and null, so that what was not reached reads as absent.
func (p *Pipeline) variables(about subject) map[string]any {
	vars := map[string]any{"event": about.data, "config": p.Config, "env": p.env}

	for i := range p.Task.Params {
		vars[p.Task.Params[i].Name] = nil
	}

	for i := range p.Task.Preconditions {
		one := &p.Task.Preconditions[i]
		if one.APICall != nil {
			vars[one.Name] = nil
		}

		for j := range one.Capture {
			vars[one.Capture[j].Name] = nil
		}
	}

	return vars
}

// run is the work on one event.
type run struct {
	p     *Pipeline
	about subject
	vars  map[string]any
	log   *slog.Logger

	// answered says that the API's own answer for the resource was seen, deleting whether
	// it is being deleted, and current its generation.
	answered, deleting bool
	current            int64
	// gone says that the API has no such resource.
	gone bool
	// skipped is the reason why the resources phase did not run, if a precondition is
	// unmet.
	skipped string
	// look says that the event was handled before, and an object has changed since.
	look bool
	// step that failed, and whether what failed may go away by itself.
	step      string
	transient bool
	// reported says that the task file itself reported Available=False for the event's
	// generation.
	reported bool

	result Result
}

// phases runs them.
func (r *run) phases(ctx context.Context) {
	r.params(ctx)

	if r.going() {
		r.preconditions(ctx)
	}

	if r.going() && r.skipped == "" {
		r.resources(ctx)
	}

	if !r.gone && !r.outdated() && (!r.look || r.skipped == "") {
		r.post(ctx)
	}

	r.settle(ctx)
}

// going says whether the next phase is to run.
func (r *run) going() bool { return r.result.Failure == nil && !r.gone && !r.outdated() }

// outdated says that the API has a later generation than the event. Its own event comes,
// or was here: this one writes and reports nothing, lest it make again what the later one
// has removed.
func (r *run) outdated() bool { return r.current > r.about.generation }

// fail notes the first failure; what fails after it is only in the trace.
func (r *run) fail(phase Phase, step string, err error) {
	transient := mayPass(err)
	if r.result.Failure != nil {
		// A transient failure of a report has the event come again, whatever failed first.
		r.transient = r.transient || transient

		return
	}

	r.result.Status, r.result.Phase, r.result.Failure = Failed, phase, err
	r.step, r.transient = step, transient
}

// settle reports what the task file did not, and decides what becomes of the event.
func (r *run) settle(ctx context.Context) {
	if r.gone || r.outdated() {
		// There is nobody to report to, or nothing to report.
		r.result.Status, r.result.Failure, r.result.Phase = Skipped, nil, ""

		return
	}

	if r.result.Failure == nil {
		if r.skipped != "" || stale(r.result.Resources) {
			r.result.Status = Skipped
		}

		return
	}

	r.report(ctx)

	if r.gone {
		r.settle(ctx)

		return
	}

	if r.transient {
		r.result.Err = fmt.Errorf("event of resource %s, generation %d: %w", r.about.id, r.about.generation, r.result.Failure)
	}
}

// finish writes down how it ended.
func (r *run) finish() {
	r.result.Deleting = r.deleting

	trace := &r.result.Trace.Result
	trace.Status, trace.Phase = r.result.Status, r.result.Phase

	switch {
	case r.gone:
		trace.Reason = ReasonGone
	case r.outdated():
		trace.Reason = ReasonStale
	case r.skipped != "":
		trace.Reason = r.skipped
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
		trace.Event = AckAgain
	}
}
