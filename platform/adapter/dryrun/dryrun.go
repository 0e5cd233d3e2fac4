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

// Options of Run.
type Options struct {
	// Task was loaded with Deployment, and with Clock if there is one.
	Task *task.Task
	// Deployment may be nil: a name and an API are assumed then.
	Deployment *adapter.Deployment
	// Version of the program.
	Version string
	// Event is a CloudEvent in JSON. Required.
	Event []byte
	// Responses and Discovery are the files; empty: none.
	Responses, Discovery []byte
	// Env are the environment variables that the task file sees.
	Env map[string]string
	// Clock says what time it is. Default: the real one.
	Clock clock.PassiveClock
	// Log of the task file's own lines. Default: none.
	Log *slog.Logger
}

// Report is what a dry run found.
type Report struct {
	// Adapter is the name that objects bear; Assumed says that no configuration named it.
	Adapter string `json:"adapter"`
	Assumed bool   `json:"adapter_assumed,omitempty"`

	pipeline.Trace

	// PassedOver are the objects of Options.Discovery that nothing has found, and why.
	PassedOver []string `json:"passed_over,omitempty"`
	// Calls are those that were made, and Objects what is on the cluster in the end, by
	// kind and name. Objects of kind Secret have no values.
	Calls   []Call           `json:"calls"`
	Objects []map[string]any `json:"objects"`
}

// Run plays the event. Its error is about the files; what went wrong with the event is in
// the report.
func Run(ctx context.Context, options Options) (*Report, error) {
	options.Clock = cmp.Or[clock.PassiveClock](options.Clock, clock.RealClock{})
	options.Log = cmp.Or(options.Log, slog.New(slog.DiscardHandler))

	// As Sentinel sends it. What is missing, the pipeline says.
	event := cloudevents.NewEvent()
	if err := json.Unmarshal(options.Event, &event); err != nil {
		return nil, fmt.Errorf("read event: %w", err)
	}

	assumed := options.Deployment == nil
	if assumed {
		options.Deployment = &task.Deployment(false).Default
		options.Deployment.Adapter.Name = "dry-run"
		options.Deployment.Clients.HyperFleetAPI.BaseURL = "http://hyperfleet-api:8000"
	}

	api, errAPI := newAPI(options.Responses, options.Deployment.Clients.HyperFleetAPI.BaseURL, event)
	discovery, errDiscovery := parseDiscovery(options.Discovery)

	if err := errors.Join(errAPI, errDiscovery); err != nil {
		return nil, err
	}

	deployment := *options.Deployment
	deployment.Clients.HyperFleetAPI.Auth = adapter.Auth{} // nobody is asked

	objects := newCluster(discovery, options.Clock)

	handle, err := pipeline.New(pipeline.Options{
		Deployment: &deployment, Task: options.Task, FrameworkVersion: options.Version, Env: options.Env,
		Clients:   map[string]transport.Client{transport.Kubernetes: objects, transport.Maestro: objects},
		Transport: api, Values: true, Clock: still{now: options.Clock}, Log: options.Log,
	})
	if err != nil {
		return nil, err
	}

	result := handle.Handle(ctx, event)

	return &Report{
		Adapter: deployment.Adapter.Name, Assumed: assumed, Trace: result.Trace,
		PassedOver: objects.passedOver(), Calls: api.calls, Objects: objects.all(),
	}, nil
}

// still is a clock on which waits are over at once.
type still struct {
	clock.RealClock

	now clock.PassiveClock
}

// Now is the time of the dry run.
func (s still) Now() time.Time { return s.now.Now() }

// Since is by the time of the dry run.
func (s still) Since(at time.Time) time.Duration { return s.now.Since(at) }

// NewTimer is over at once.
func (s still) NewTimer(time.Duration) clock.Timer { return s.RealClock.NewTimer(0) }

// all are the objects by kind and name.
func (c *cluster) all() []map[string]any {
	out := []map[string]any{}

	for _, name := range slices.Sorted(maps.Keys(c.objects)) {
		object := c.objects[name].DeepCopy().Object
		if object["kind"] == "Secret" {
			hide(object)
		}

		out = append(out, object)
	}

	return out
}

// hide keeps the keys of a Secret, without their values.
func hide(object map[string]any) {
	for _, field := range []string{"data", "stringData"} {
		values, _ := object[field].(map[string]any)
		for key := range values {
			values[key] = log.Redacted
		}
	}
}
