// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dryrun

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/platform/adapter/pipeline"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
)

// Options configure a dry run. Task and Event are required.
type Options struct {
	// Task is the task file, which was loaded with Deployment, and with Clock if Clock is set.
	Task *task.Task
	// Deployment is the deployment configuration. If it is nil, Run uses a default name and API.
	Deployment *adapter.Deployment
	// Version is the version of the program.
	Version string
	// Event is a CloudEvent in JSON. Required.
	Event []byte
	// Responses and Discovery are the contents of the two files. Both may be empty.
	Responses, Discovery []byte
	// Env are the environment variables that the task file can read.
	Env map[string]string
	// Clock is the clock of the dry run. Default: the real clock.
	Clock clock.PassiveClock
	// Log is the logger for the log lines of the task file. Default: no logs.
	Log *slog.Logger
}

// Report is the result of a dry run.
type Report struct {
	// Adapter is the name of the adapter in the labels of objects. Assumed is true if no configuration
	// has the name.
	Adapter string `json:"adapter"`
	Assumed bool   `json:"adapter_assumed,omitempty"`

	pipeline.Trace

	// Unmatched are the objects of Options.Discovery that no discovery has found, with the reason.
	Unmatched []string `json:"passed_over,omitempty"`
	// Calls are the calls of the event. Objects are the final objects on the cluster, sorted by kind,
	// namespace and name. The values of Secrets are redacted.
	Calls   []Call           `json:"calls"`
	Objects []map[string]any `json:"objects"`
}

// Run runs the pipeline for the event. It returns an error only if a file is invalid. Failures of the
// event are in the report.
func Run(ctx context.Context, options Options) (*Report, error) {
	options.Clock = cmp.Or[clock.PassiveClock](options.Clock, clock.RealClock{})
	options.Log = cmp.Or(options.Log, slog.New(slog.DiscardHandler))

	// The event has the format of Sentinel's events. The pipeline checks its data.
	event := cloudevents.NewEvent()
	if err := json.Unmarshal(options.Event, &event); err != nil {
		return nil, fmt.Errorf("read event: %w", err)
	}

	isAssumed := options.Deployment == nil
	if isAssumed {
		options.Deployment = &task.NewDeploymentSpec(task.FileOptional).Default
		options.Deployment.Adapter.Name = "dry-run"
		options.Deployment.Clients.HyperFleetAPI.BaseURL = "http://hyperfleet-api:8000"
	}

	api, errAPI := newAPI(options.Responses, options.Deployment.Clients.HyperFleetAPI.BaseURL, event)
	discovery, errDiscovery := parseDiscovery(options.Discovery)

	if err := errors.Join(errAPI, errDiscovery); err != nil {
		return nil, err
	}

	deployment := *options.Deployment
	deployment.Clients.HyperFleetAPI.Auth = adapter.Auth{} // no request leaves the process

	objects := newCluster(discovery, options.Clock)

	p, err := pipeline.New(pipeline.Options{
		Deployment: &deployment, Task: options.Task, FrameworkVersion: options.Version, Env: options.Env,
		Clients:   map[string]transport.Client{transport.Kubernetes: objects, transport.Maestro: objects},
		Transport: api, IncludeValues: true, Clock: instantClock{now: options.Clock}, Log: options.Log,
	})
	if err != nil {
		return nil, err
	}

	result := p.Handle(ctx, event)

	return &Report{
		Adapter: deployment.Adapter.Name, Assumed: isAssumed, Trace: result.Trace,
		Unmatched: objects.listUnmatched(), Calls: api.calls, Objects: objects.listObjects(),
	}, nil
}

// instantClock is a clock with the time of the dry run, whose timers fire immediately.
type instantClock struct {
	clock.RealClock

	now clock.PassiveClock
}

// Now returns the time of the dry run.
func (s instantClock) Now() time.Time { return s.now.Now() }

// Since returns the duration since t at the time of the dry run.
func (s instantClock) Since(t time.Time) time.Duration { return s.now.Since(t) }

// NewTimer returns a timer that fires immediately.
func (s instantClock) NewTimer(time.Duration) clock.Timer { return s.RealClock.NewTimer(0) }

// listObjects returns the objects sorted by kind, namespace and name. It redacts the values of Secrets.
func (c *cluster) listObjects() []map[string]any {
	out := []map[string]any{}

	for _, name := range slices.Sorted(maps.Keys(c.objects)) {
		object := c.objects[name].DeepCopy().Object
		if object["kind"] == "Secret" {
			redactSecret(object)
		}

		out = append(out, object)
	}

	return out
}

// redactSecret replaces the values of a Secret, and keeps its keys.
func redactSecret(object map[string]any) {
	for _, field := range []string{"data", "stringData"} {
		values, _ := object[field].(map[string]any)
		for key := range values {
			values[key] = log.Redacted
		}
	}
}
