// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners

import (
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/runners/logstore"
	"github.com/hyperfleet/hyperfleet/runners/machineclaim"
	"github.com/hyperfleet/hyperfleet/runners/report"
)

// newLogs returns the component that stores machine logs as RunnerLogs in the cluster. If runners.logs.keepIn is
// store, it marks them for the upload to the object store. newLogs returns nil if keepIn is nowhere.
func (a *Area) newLogs(mgr ctrl.Manager) *report.Logs {
	if a.Config.Logs.KeepIn == config.LogsNowhere {
		return nil
	}

	return &report.Logs{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), UploadEnabled: a.Config.Logs.KeepIn == config.LogsInStore,
		Key: a.Settings.ReportKey,
	}
}

// newLogFinder returns newLogs as an interface, which is nil if logs are turned off.
func (a *Area) newLogFinder(mgr ctrl.Manager) demand.Logs {
	if logs := a.newLogs(mgr); logs != nil {
		return logs
	}

	return nil
}

// newConsoleLogs returns newLogs as an interface, which is nil if logs are turned off.
func (a *Area) newConsoleLogs(mgr ctrl.Manager) machineclaim.ConsoleLogs {
	if logs := a.newLogs(mgr); logs != nil {
		return logs
	}

	return nil
}

// newLogStoreControllers returns the controller that copies logs to the object store. It returns no controller
// if no store is configured, but registers the metrics of the store in any case.
func (a *Area) newLogStoreControllers(mgr ctrl.Manager, secrets *connect.Secrets) ([]func(ctrl.Manager) error, error) {
	metrics, err := logstore.NewMetrics(a.Registry)
	if err != nil {
		return nil, fmt.Errorf("set up log store: %w", err)
	}

	if a.Config.Logs.KeepIn != config.LogsInStore {
		return nil, nil
	}

	transport := a.Transports.LogStore
	if transport == nil {
		transport = bounds.SharedTransport()
	}

	return []func(ctrl.Manager) error{(&logstore.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Recorder: mgr.GetEventRecorder("hyperfleet"), Metrics: metrics,
		Store: &logstore.Store{Config: a.Config.Logs.Store, Secrets: secrets, Transport: transport},
	}).SetupWithManager}, nil
}
