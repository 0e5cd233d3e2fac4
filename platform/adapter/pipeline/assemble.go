// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/platform/adapter/httpcall"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
)

// Parts are what Assemble makes a pipeline of.
type Parts struct {
	// Deployment and Task are checked. Required, as are Clients and Keys; without Keys
	// objects carry no HMAC, as in dry runs.
	Deployment *adapter.Deployment
	Task       *task.Task
	// Clients by the name of their transport.
	Clients map[string]transport.Client
	Keys    *stamp.Keys
	// FrameworkVersion is the program's.
	FrameworkVersion string
	// Env are the environment variables that the task file sees.
	Env map[string]string
	// Transport of calls to the fleet API and others. Default: the network.
	Transport http.RoundTripper
	// Calls, if there, count and time the calls.
	Calls *metrics.Calls
	// Values are in the trace, for dry runs.
	Values bool
	// Clock. Default: the real one.
	Clock clock.Clock
	// Log. Default: slog.Default.
	Log *slog.Logger
}

// Assemble makes the pipeline of an adapter.
func Assemble(parts Parts) (*Pipeline, error) {
	parts.Clock = cmp.Or[clock.Clock](parts.Clock, clock.RealClock{})
	parts.Log = cmp.Or(parts.Log, slog.Default())

	stamper, err := stamp.New(parts.Deployment.Adapter.Name, parts.Keys)
	if err != nil {
		return nil, err
	}

	api := parts.Deployment.Clients.HyperFleetAPI

	calls, err := httpcall.New(httpcall.Options{API: api, Transport: parts.Transport, Calls: parts.Calls, Clock: parts.Clock})
	if err != nil {
		return nil, err
	}

	reports, err := APIClient(parts.Deployment, client.Options{Calls: parts.Calls, Transport: parts.Transport, Clock: parts.Clock})
	if err != nil {
		return nil, err
	}

	seen := resources.NewGenerations()

	return New(Options{
		Task: parts.Task, Identity: parts.Deployment.Adapter, FrameworkVersion: parts.FrameworkVersion,
		HTTP: calls, API: reports, Config: task.Redacted(parts.Deployment), Env: parts.Env, Values: parts.Values,
		Clock: parts.Clock, Log: parts.Log,
		Resources: func(ctx context.Context, work Work) (resources.Result, error) {
			return resources.Run(ctx, resources.Input{
				Task: parts.Task, Vars: work.Vars, Clients: parts.Clients, Stamper: stamper,
				ResourceID: work.ResourceID, Generation: work.Generation, Deleting: work.Deleting,
				Seen: seen, Clock: parts.Clock, Log: parts.Log,
			})
		},
	})
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
