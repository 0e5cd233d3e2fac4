// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

const (
	defaultInterval      = 30 * time.Minute
	defaultSweepInterval = 10 * time.Minute
	// defaultStalledInterval is the delay before a stalled registration is reconciled again. No watch event
	// follows when a person fixes a key or a zone.
	defaultStalledInterval = 2 * time.Minute
)

// Options holds what the registration of machines needs from its process.
type Options struct {
	// Secret reads credentials. Required.
	Secret SecretReader
	// OperatorUID identifies the operator in the ownership records. Required.
	OperatorUID string
	// Factories has the factories of DNS services. It defaults to Factories().
	Factories map[string]Factory
	// Transport wraps the HTTP transport of a service, by the type of the service. It may be nil.
	Transport func(kind string, next http.RoundTripper) http.RoundTripper
	// Calls records metrics of calls to DNS services. It may be nil.
	Calls *metrics.CallMetrics
	// StepMetrics records the metrics of the area's steps. It may be nil.
	StepMetrics *step.Metrics
	// Clock defaults to the real clock.
	Clock clock.WithTicker
	// Log defaults to slog.Default().
	Log *slog.Logger
	// Interval is the time after which a registration is reconciled again. It defaults to 30 minutes.
	Interval time.Duration
	// SweepInterval is the time between two searches for orphaned records. It defaults to 10 minutes.
	SweepInterval time.Duration
	// StalledInterval is the delay before a stalled registration is reconciled again. It defaults to 2
	// minutes.
	StalledInterval time.Duration
}

// SetupWithManager adds the registration of machines in DNS to a manager.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, opts Options) error {
	opts = opts.withDefaults()

	services := &Services{
		Factories: opts.Factories, Secret: opts.Secret, Transport: opts.Transport, Clock: opts.Clock, Calls: opts.Calls,
	}

	if err := indexRegistrations(ctx, mgr); err != nil {
		return err
	}

	if err := addClaims(mgr, opts); err != nil {
		return err
	}

	if err := addKubevirtMachines(mgr, opts); err != nil {
		return err
	}

	registrations := &RegistrationReconciler{
		Client: mgr.GetClient(),
		Runner: &step.Reconciler{
			Client: mgr.GetClient(), Controller: "dnsregistration", Clock: opts.Clock, Metrics: opts.StepMetrics,
			Resync: opts.StalledInterval, Recorder: mgr.GetEventRecorder("hyperfleet"),
		},
		Services: services, OperatorUID: opts.OperatorUID,
		Clock: opts.Clock, Interval: opts.Interval,
	}
	if err := registrations.SetupWithManager(mgr); err != nil {
		return err
	}

	err := mgr.Add(&Sweeper{
		APIReader: mgr.GetAPIReader(), Services: services, OperatorUID: opts.OperatorUID,
		Interval: opts.SweepInterval, Clock: opts.Clock, Log: opts.Log,
	})
	if err != nil {
		return fmt.Errorf("add sweeper of DNS zones: %w", err)
	}

	return nil
}

func (o Options) withDefaults() Options {
	if o.Factories == nil {
		o.Factories = Factories()
	}

	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}

	if o.Log == nil {
		o.Log = slog.Default()
	}

	if o.Interval == 0 {
		o.Interval = defaultInterval
	}

	if o.SweepInterval == 0 {
		o.SweepInterval = defaultSweepInterval
	}

	if o.StalledInterval == 0 {
		o.StalledInterval = defaultStalledInterval
	}

	return o
}
