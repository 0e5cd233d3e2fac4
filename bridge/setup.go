// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/address"
	"github.com/hyperfleet/hyperfleet/bridge/csr"
	"github.com/hyperfleet/hyperfleet/bridge/dpfhcpbridge"
	kinds "github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/bridge/ignition"
	"github.com/hyperfleet/hyperfleet/bridge/release"
	"github.com/hyperfleet/hyperfleet/kit/crdgate"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// Area is what the bridge area needs of its process.
type Area struct {
	Config   config.Bridge
	Registry prometheus.Registerer
	Clock    clock.WithTicker
	Log      *slog.Logger
	// Transport leads to image registries.
	Transport http.RoundTripper
	// Hosted wraps transports that lead to hosted clusters; may be nil.
	Hosted func(http.RoundTripper) http.RoundTripper
}

// Setup adds the area's controllers to the manager. What needs another project's kinds
// starts when they are there.
func (a *Area) Setup(ctx context.Context, mgr ctrl.Manager) error {
	steps, err := step.NewMetrics(a.Registry)
	if err != nil {
		return fmt.Errorf("set up steps: %w", err)
	}

	ranges, err := Ranges(a.Config.AddressRanges)
	if err != nil {
		return err
	}

	bridges := &dpfhcpbridge.Reconciler{
		Client: mgr.GetClient(), Cache: mgr.GetCache(), Live: mgr.GetAPIReader(),
		Runner: &step.Runner{
			Client: mgr.GetClient(), Controller: "dpfhcpbridge", Clock: a.Clock, Metrics: steps, Summarize: dpfhcpbridge.Summarize,
		},
		Recorder: mgr.GetEventRecorder("hyperfleet"), Clock: a.Clock, Images: release.New(a.Transport, a.Clock),
		Ignition:            &ignition.Client{Wrap: a.Hosted, Clock: a.Clock},
		HyperShiftNamespace: a.Config.HyperShiftNamespace, MetalLBNamespace: a.Config.MetalLBNamespace,
		Ranges: ranges, Concurrency: a.Config.Concurrency,
	}
	if err := bridges.SetupWithManager(ctx, mgr); err != nil {
		return err
	}

	if err := a.Registry.Register(dpfhcpbridge.NewCollector(mgr.GetClient())); err != nil {
		return fmt.Errorf("register metrics of bridges: %w", err)
	}

	for _, project := range []struct {
		name  string
		kinds []schema.GroupVersionKind
		open  func(context.Context) error
	}{
		{"DPF", []schema.GroupVersionKind{kinds.DPUClusterKind(), kinds.DPUFlavorKind()}, bridges.OpenDPF},
		{"HyperShift", []schema.GroupVersionKind{kinds.HostedClusterKind(), kinds.NodePoolKind()}, bridges.OpenHyperShift},
		{"MetalLB", []schema.GroupVersionKind{kinds.IPAddressPoolKind(), kinds.L2AdvertisementKind()}, bridges.OpenMetalLB},
	} {
		open := func(ctx context.Context, _ ctrl.Manager) error { return project.open(ctx) }
		if err := a.gate(ctx, mgr, project.name, project.kinds, open); err != nil {
			return err
		}
	}

	return a.approval(ctx, mgr)
}

// approval adds what approves the certificates of workers, where that is asked for.
func (a *Area) approval(ctx context.Context, mgr ctrl.Manager) error {
	if !a.Config.CSRApproval {
		return nil
	}

	approver := &csr.Approver{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Recorder: mgr.GetEventRecorder("hyperfleet"),
		Registry: a.Registry, Clock: a.Clock, Log: a.Log, Transport: a.Hosted, Concurrency: a.Config.Concurrency,
	}

	open := func(_ context.Context, mgr ctrl.Manager) error { return approver.SetupWithManager(mgr) }

	return a.gate(ctx, mgr, "DPF workers", []schema.GroupVersionKind{csr.DPUKind()}, open)
}

// gate opens at once when the kinds are there, so that no bridge is told that they are not,
// and else when they have come.
func (a *Area) gate(
	ctx context.Context, mgr ctrl.Manager, name string, needed []schema.GroupVersionKind,
	open func(context.Context, ctrl.Manager) error,
) error {
	there := true

	for _, kind := range needed {
		_, err := mgr.GetRESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil && !meta.IsNoMatchError(err) {
			return fmt.Errorf("look for kind %s: %w", kind.Kind, err)
		}

		there = there && err == nil
	}

	if there {
		return open(ctx, mgr)
	}

	gate := &crdgate.Gate{
		Area: "bridge: " + name, Kinds: needed, Manager: mgr, Clock: a.Clock, Log: a.Log, Open: open,
	}
	if err := mgr.Add(gate); err != nil {
		return fmt.Errorf("add gate of kinds of %s: %w", name, err)
	}

	return nil
}

// Ranges reads ranges of addresses.
func Ranges(entries []string) ([]address.Range, error) {
	out := make([]address.Range, 0, len(entries))

	for _, entry := range entries {
		r, err := address.Parse(entry)
		if err != nil {
			return nil, fmt.Errorf("read address ranges: %w", err)
		}

		out = append(out, r)
	}

	return out, nil
}
