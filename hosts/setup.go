// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/drift"
	"github.com/hyperfleet/hyperfleet/hosts/fleet"
	"github.com/hyperfleet/hyperfleet/hosts/linux"
	"github.com/hyperfleet/hyperfleet/hosts/mac"
	"github.com/hyperfleet/hyperfleet/hosts/machine"
	"github.com/hyperfleet/hyperfleet/hosts/ssh"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/keep"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// Area holds the dependencies of the hosts area.
type Area struct {
	Config   config.Hosts
	Registry prometheus.Registerer
	Clock    clock.WithTicker
	// Calls counts calls to hosts and to cloud APIs. It may be nil.
	Calls *metrics.CallMetrics
	// Transport wraps the transport to cloud APIs. It may be nil.
	Transport func(http.RoundTripper) http.RoundTripper
	// Egress limits the addresses of the servers that the Secrets of hosts may name. If Egress is
	// nil, only public addresses are allowed.
	Egress *bounds.EgressPolicy
}

// Setup adds the area's controllers to the manager. It loads the configuration and the files that
// the configuration names, and computes the hash of each kind once.
func (a *Area) Setup(ctx context.Context, mgr ctrl.Manager) error {
	kinds, err := a.Kinds(mgr.GetAPIReader())
	if err != nil {
		return err
	}

	stepMetrics, err := step.NewMetrics(a.Registry)
	if err != nil {
		return fmt.Errorf("register step metrics: %w", err)
	}

	pushMetrics, err := machine.NewMetrics(a.Registry)
	if err != nil {
		return err
	}

	fleetMetrics, err := fleet.NewMetrics(a.Registry)
	if err != nil {
		return err
	}

	recorder := mgr.GetEventRecorder("hyperfleet")
	newRunner := func(name string) *step.Reconciler {
		return &step.Reconciler{Client: mgr.GetClient(), Controller: name, Clock: a.Clock, Metrics: stepMetrics, Recorder: recorder}
	}

	dialer := ssh.New(ssh.Options{Clock: a.Clock, Calls: a.Calls})

	pool := machine.NewWorkerPool(dialer, a.Clock, a.Config.Pushes, a.Config.ScriptTimeout)
	if err := mgr.Add(pool); err != nil {
		return fmt.Errorf("add worker pool: %w", err)
	}

	settings := machine.Settings{
		Policy: a.Policy(), ProbeInterval: a.Config.ProbeInterval, Concurrency: a.Config.Concurrency,
	}

	keeper := &keep.Keeper{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Area: "hosts", Role: keep.RoleName, Clock: a.Clock,
	}
	for _, kind := range kinds {
		keeper.Lists = append(keeper.Lists, kind.NewList())
	}

	for _, kind := range kinds {
		r := &machine.Reconciler{
			Kind: kind, Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Secrets: machine.KubeSecrets{Reader: mgr.GetAPIReader()},
			Runner: newRunner(strings.ToLower(kind.Name())), Recorder: recorder, Clock: a.Clock,
			WorkerPool: pool, Metrics: pushMetrics, Settings: settings, Keeper: keeper,
		}
		if err := r.SetupWithManager(ctx, mgr); err != nil {
			return err
		}
	}

	fleets := &fleet.Reconciler{
		Kinds: kinds, Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Runner: newRunner("hostfleet"), Recorder: recorder,
		Clock: a.Clock, Metrics: fleetMetrics, Policy: a.Policy(),
	}

	return fleets.SetupWithManager(mgr)
}

// Policy returns how many attempts a host gets and how long the operator backs off between them.
func (a *Area) Policy() drift.Policy {
	return drift.Policy{
		MaxAttempts: a.Config.MaxUpdateAttempts, MaxBootstrapAttempts: a.Config.MaxBootstrapAttempts,
		BaseBackoff: a.Config.RetryBase, MaxBackoff: a.Config.RetryCap,
	}
}

// Kinds returns all kinds of hosts, each with its part of the configuration. apiReader must read from
// the API server, not from a cache. To add a kind, only this function has to change.
func (a *Area) Kinds(apiReader client.Reader) ([]machine.Kind, error) {
	linuxFleet, err := linux.Load(a.Config.Linux)
	if err != nil {
		return nil, err
	}

	macFleet, err := mac.Load(a.Config.Mac)
	if err != nil {
		return nil, err
	}

	macs := mac.New(mac.Options{
		APIReader: apiReader, Secrets: machine.KubeSecrets{Reader: apiReader}, Fleet: macFleet, Clock: a.Clock,
		Transport: a.Transport, Egress: a.Egress,
	})

	return []machine.Kind{linux.New(linuxFleet), macs}, nil
}
