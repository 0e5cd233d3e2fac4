// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package networking

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/foreign"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
	"github.com/hyperfleet/hyperfleet/networking/machine"
	"github.com/hyperfleet/hyperfleet/networking/nodepool"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

// Area is what the networking area needs of its process.
type Area struct {
	Config   config.Networking
	Registry prometheus.Registerer
	Clock    clock.WithTicker
	Log      *slog.Logger
}

// Setup adds the area's controllers to the manager. Those for KubeVirt start when its kinds
// are there.
func (a *Area) Setup(mgr ctrl.Manager) error {
	steps, err := step.NewMetrics(a.Registry)
	if err != nil {
		return fmt.Errorf("set up steps: %w", err)
	}

	book := pools.New()
	book.ReadFrom(nodepool.Reader(mgr.GetAPIReader()), machine.Reader(mgr.GetAPIReader()))

	for _, collector := range []prometheus.Collector{pools.NewCollector(book), nodepool.NewCollector(book)} {
		if err := a.Registry.Register(collector); err != nil {
			return fmt.Errorf("register metrics of address pools: %w", err)
		}
	}

	if err := mgr.AddReadyzCheck("addresses", book.Check); err != nil {
		return fmt.Errorf("add readiness check: %w", err)
	}

	gate := &foreign.Gate{
		Area: "networking", Kinds: []schema.GroupVersionKind{kubevirt.VirtualMachineKind(), kubevirt.InstanceKind()},
		Config: mgr.GetConfig(), Clock: a.Clock, Log: a.Log,
		Open: func(context.Context) error { return a.kubevirt(mgr, book, steps) },
	}
	if err := mgr.Add(gate); err != nil {
		return fmt.Errorf("add gate of KubeVirt's kinds: %w", err)
	}

	return nil
}

// kubevirt adds the controllers of KubeVirt machines.
func (a *Area) kubevirt(mgr ctrl.Manager, book *pools.Book, steps *step.Metrics) error {
	runner := func(name string) *step.Runner {
		return &step.Runner{Client: mgr.GetClient(), Controller: name, Clock: a.Clock, Metrics: steps}
	}
	recorder := mgr.GetEventRecorder("hyperfleet")

	machines := &machine.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Runner: runner("kubevirtmachine"), Recorder: recorder,
		Book: book, Clock: a.Clock, Concurrency: a.Config.Concurrency,
	}
	if err := machines.SetupWithManager(mgr); err != nil {
		return err
	}

	nodePools := &nodepool.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Runner: runner("kubevirtnodepool"), Recorder: recorder,
		Book: book, Clock: a.Clock,
	}

	return nodePools.SetupWithManager(mgr)
}
