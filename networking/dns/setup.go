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
	// stalledAgain is how often what a person has to fix is looked at: keys and zones are
	// fixed where no event tells of it.
	stalledAgain = 2 * time.Minute
)

// Options are what the registration of machines needs of its process.
type Options struct {
	// Secret reads credentials. Required.
	Secret ReadSecret
	// OperatorUID is on the marks of records. Required.
	OperatorUID string
	// Factories of DNS services. Default: Factories().
	Factories map[string]Factory
	// Transport wraps that of services with an HTTP API, by their type; may be nil.
	Transport func(kind string, next http.RoundTripper) http.RoundTripper
	// Calls notes calls to DNS services; may be nil.
	Calls *metrics.Calls
	// StepMetrics of the area; may be nil.
	StepMetrics *step.Metrics
	// Clock. Default: the real one.
	Clock clock.WithTicker
	// Log. Default: slog.Default().
	Log *slog.Logger
	// Interval after which records are looked at again. Default: 30 minutes.
	Interval time.Duration
	// SweepInterval between two searches for records that are left over. Default: 10 minutes.
	SweepInterval time.Duration
	// StalledInterval after which what a person has to fix is tried again. Default: 2
	// minutes.
	StalledInterval time.Duration
}

// SetupWithManager adds the registration of machines in DNS to a manager.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, opts Options) error {
	opts = opts.defaulted()

	services := &Services{
		Factories: opts.Factories, Secret: opts.Secret, Transport: opts.Transport, Clock: opts.Clock, Calls: opts.Calls,
	}

	if err := index(ctx, mgr); err != nil {
		return err
	}

	if err := addClaims(mgr, opts); err != nil {
		return err
	}

	if err := addKubevirtMachines(mgr, opts); err != nil {
		return err
	}

	registrations := &Registrations{
		Client: mgr.GetClient(),
		Runner: &step.Runner{
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
		Live: mgr.GetAPIReader(), Services: services, OperatorUID: opts.OperatorUID,
		Interval: opts.SweepInterval, Clock: opts.Clock, Log: opts.Log,
	})
	if err != nil {
		return fmt.Errorf("add sweeper of DNS zones: %w", err)
	}

	return nil
}

func (o Options) defaulted() Options {
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
		o.StalledInterval = stalledAgain
	}

	return o
}
