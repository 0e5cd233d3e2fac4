// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/platform/adapter/httpcall"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/broker"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
)

const tracerName = "github.com/hyperfleet/hyperfleet/platform/adapter"

// Options of New. Deployment and Task are required and checked.
type Options struct {
	Deployment *adapter.Deployment
	// Task is what to do with events.
	Task *task.Task
	// Clients by the name of their transport.
	Clients map[string]transport.Client
	// Keys of the HMAC. Without them objects carry none, as in dry runs.
	Keys *stamp.Keys
	// FrameworkVersion is the program's.
	FrameworkVersion string
	// Env are the environment variables that the task file sees.
	Env map[string]string
	// Transport of calls to the fleet API and others. Default: the network.
	Transport http.RoundTripper
	// Calls, if there, count and time the calls.
	Calls *metrics.Calls
	// Values puts the values of params, captures and payloads into the trace: for dry
	// runs, never for logs.
	Values bool
	// Clock. Default: the real one.
	Clock clock.Clock
	// Log, also of the task file's own lines. Default: slog.Default.
	Log *slog.Logger
}

// Pipeline handles events. It may be used from any goroutine.
type Pipeline struct {
	Options

	// http makes the calls of the task file.
	http *httpcall.Client
	// api takes the framework's own reports, and says whether a resource is gone.
	api     *client.Client
	stamper *stamp.Stamper
	seen    *resources.Generations
	// resources is the resources phase; tests have their own.
	resources func(context.Context, resources.Input) (resources.Result, error)
	// config and env are the variables of those names.
	config, env map[string]any
}

// New makes the pipeline of an adapter.
func New(options Options) (*Pipeline, error) {
	options.Clock = cmp.Or[clock.Clock](options.Clock, clock.RealClock{})
	options.Log = cmp.Or(options.Log, slog.Default())

	p := &Pipeline{
		Options: options, seen: resources.NewGenerations(), resources: resources.Run,
		stamper: stamp.New(options.Deployment.Adapter.Name, options.Keys),
		config:  task.Redacted(options.Deployment), env: map[string]any{},
	}
	for name, value := range options.Env {
		p.env[name] = value
	}

	var errHTTP, errAPI error

	p.http, errHTTP = httpcall.New(httpcall.Options{
		API: options.Deployment.Clients.HyperFleetAPI, Transport: options.Transport, Calls: options.Calls, Clock: options.Clock,
	})
	p.api, errAPI = APIClient(options.Deployment, client.Options{
		Calls: options.Calls, Transport: options.Transport, Clock: options.Clock,
	})

	return p, errors.Join(errHTTP, errAPI)
}

// APIClient is the framework's own client of the fleet API. Headers such as those of a
// tenant belong to its calls as well.
func APIClient(deployment *adapter.Deployment, options client.Options) (*client.Client, error) {
	api := deployment.Clients.HyperFleetAPI
	options.Headers, options.UserAgent = api.DefaultHeaders, "hyperfleet-adapter"

	return client.New(platform.APIClient{
		BaseURL: api.BaseURL, CAFile: api.CAFile, Timeout: api.Timeout, TokenFile: api.Auth.TokenPath,
	}, options)
}

// Handle handles one event. Of a Look whose preconditions are unmet it reports nothing:
// there is nothing new to say, and what was reported before stays true.
func (p *Pipeline) Handle(ctx context.Context, event cloudevents.Event) Result {
	ctx, span := otel.Tracer(tracerName).Start(ctx, "adapter event")
	defer span.End()

	about, data, err := parse(event)
	r := &run{
		p: p, about: about, look: ctx.Value(lookKey{}) != nil, result: Result{Status: Success, Trace: Trace{Event: about}},
		log: p.Log.With("event", about.ID, "resourceId", about.ResourceID, "kind", about.Kind, "generation", about.Generation),
	}

	if err != nil {
		r.fail(PhaseEvent, "", err)
		r.result.Err = broker.Poison(fmt.Errorf("event %s: %w", about.ID, err))
		r.finish()

		return r.result
	}

	span.SetAttributes(attribute.String("hyperfleet.resource.id", about.ResourceID),
		attribute.String("hyperfleet.resource.kind", about.Kind), attribute.Int64("hyperfleet.generation", about.Generation))

	r.vars = p.variables(data)
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

// variables are those of an event before its params are taken. Names that get their
// value later are there and null, so that what was not reached reads as absent.
func (p *Pipeline) variables(event map[string]any) map[string]any {
	vars := map[string]any{"event": event, "config": p.config, "env": p.env}

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
	about EventTrace
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
func (r *run) outdated() bool { return r.current > r.about.Generation }

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
		r.result.Err = fmt.Errorf("event of resource %s, generation %d: %w", r.about.ResourceID, r.about.Generation, r.result.Failure)
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
