// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners

import (
	"fmt"
	"net/http"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/kit/watch"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/runners/machineclaim"
)

// jobParts are the components that keep the RunnerJobs up to date.
type jobParts struct {
	controllers []func(ctrl.Manager) error
	receiver    http.Handler
	sources     *demand.Sources
	// sourcesChanged enqueues the pools whose job source has changed state.
	sourcesChanged *watch.Source
	// ends receives the last state of each claim.
	ends machineclaim.Ends
}

// newJobParts creates the components that keep the RunnerJobs up to date, and registers their metrics.
func (a *Area) newJobParts(
	mgr ctrl.Manager, stepReconciler *step.Reconciler, secrets *connect.Secrets, workloads *connect.Workloads,
) (*jobParts, error) {
	metrics, err := demand.NewMetrics(a.Registry)
	if err != nil {
		return nil, fmt.Errorf("set up demand: %w", err)
	}

	labels := a.JobLabels

	jobMetrics, err := demand.NewJobMetrics(a.Registry, labels.Names, labels.MaxCombinations)
	if err != nil {
		return nil, fmt.Errorf("set up demand: %w", err)
	}

	reconciler := &demand.JobReconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), StepReconciler: stepReconciler, Providers: workloads,
		Platforms: a.Platforms, Clock: a.Clock, Retention: a.Config.JobRetention, ConfirmAfter: a.Config.JobSilence,
		Metrics: metrics, JobMetrics: jobMetrics, Recorder: mgr.GetEventRecorder("hyperfleet"), Logs: a.newLogFinder(mgr),
	}
	receiver := demand.NewReceiver(demand.ReceiverConfig{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Secrets: secrets, Platforms: a.Platforms,
		MaxBody: a.MaxBodyBytes, Clock: a.Clock, Metrics: metrics, Log: a.Log,
	})

	sourcesChanged := &watch.Source{}
	sources := &demand.Sources{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Providers: workloads, Platforms: a.Platforms,
		WebhookURL: a.WebhookURL, Clock: a.Clock, Metrics: metrics, Log: a.Log, EnqueuePool: sourcesChanged.Enqueue,
	}

	batches := &demand.BatchReconciler{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Platforms: a.Platforms, Log: a.Log}

	stores, err := a.newLogStoreControllers(mgr, secrets)
	if err != nil {
		return nil, err
	}

	return &jobParts{
		controllers: append(stores, reconciler.SetupWithManager, batches.SetupWithManager),
		receiver:    receiver, sources: sources, sourcesChanged: sourcesChanged, ends: reconciler,
	}, nil
}
