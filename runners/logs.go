// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners

import (
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/runners/logstore"
	"github.com/hyperfleet/hyperfleet/runners/report"
)

// logs keeps the logs of machines; nil where none are kept.
func (a *Area) logs(mgr ctrl.Manager) *report.Logs {
	if a.Config.Logs.KeepIn == config.LogsNowhere {
		return nil
	}

	return &report.Logs{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), ForStore: a.Config.Logs.KeepIn == config.LogsInStore,
	}
}

// finder finds the logs of machines.
func (a *Area) finder(mgr ctrl.Manager) demand.Logs {
	if logs := a.logs(mgr); logs != nil {
		return logs
	}

	return nil
}

// logStore brings logs to the object store, where one is configured.
func (a *Area) logStore(mgr ctrl.Manager, secrets *connect.Secrets) ([]func(ctrl.Manager) error, error) {
	metrics, err := logstore.NewMetrics(a.Registry)
	if err != nil {
		return nil, fmt.Errorf("set up log store: %w", err)
	}

	if a.Config.Logs.KeepIn != config.LogsInStore {
		return nil, nil
	}

	transport := a.Transports.LogStore
	if transport == nil {
		transport = httpbound.Shared()
	}

	return []func(ctrl.Manager) error{(&logstore.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Recorder: mgr.GetEventRecorder("hyperfleet"), Metrics: metrics,
		Store: &logstore.Store{Config: a.Config.Logs.Store, Secrets: secrets, Transport: transport},
	}).SetupWithManager}, nil
}
