// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/address"
	"github.com/hyperfleet/hyperfleet/bridge/csr"
	"github.com/hyperfleet/hyperfleet/bridge/dpfhcpbridge"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/bridge/ignition"
	"github.com/hyperfleet/hyperfleet/bridge/release"
	"github.com/hyperfleet/hyperfleet/kit/keep"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/kit/watch"
)

// Area holds what the bridge area needs from its process.
type Area struct {
	Config   config.Bridge
	Registry prometheus.Registerer
	Clock    clock.WithTicker
	Log      *slog.Logger
	// RegistryTransport sends requests to image registries.
	RegistryTransport http.RoundTripper
	// WrapHostedTransport wraps the transports for hosted clusters. It may be nil.
	WrapHostedTransport func(http.RoundTripper) http.RoundTripper
}

// Setup adds the area's controllers to the manager. If the CRDs of another project are not installed,
// the parts that need them start when the CRDs are installed.
func (a *Area) Setup(ctx context.Context, mgr ctrl.Manager) error {
	stepMetrics, err := step.NewMetrics(a.Registry)
	if err != nil {
		return fmt.Errorf("register metrics of steps: %w", err)
	}

	ranges, err := ParseRanges(a.Config.AddressRanges)
	if err != nil {
		return err
	}

	reconciler := &dpfhcpbridge.Reconciler{
		Client: mgr.GetClient(), Cache: mgr.GetCache(), APIReader: mgr.GetAPIReader(),
		Runner: &step.Reconciler{
			Client: mgr.GetClient(), Controller: "dpfhcpbridge", Clock: a.Clock, Metrics: stepMetrics, Summarize: dpfhcpbridge.Summarize,
		},
		Recorder: mgr.GetEventRecorder("hyperfleet"), Clock: a.Clock, Images: release.New(a.RegistryTransport, a.Clock),
		Ignition: &ignition.Client{WrapTransport: a.WrapHostedTransport, Clock: a.Clock},
		Keeper: &keep.Keeper{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Area: "bridge", Clock: a.Clock,
			Lists: []client.ObjectList{&v1alpha1.DPFHCPBridgeList{}},
		},
		HyperShiftNamespace: a.Config.HyperShiftNamespace, MetalLBNamespace: a.Config.MetalLBNamespace,
		Ranges: ranges, Concurrency: a.Config.Concurrency,
	}
	if err := reconciler.SetupWithManager(ctx, mgr); err != nil {
		return err
	}

	if err := a.Registry.Register(dpfhcpbridge.NewCollector(mgr.GetClient())); err != nil {
		return fmt.Errorf("register metrics of bridges: %w", err)
	}

	for _, project := range []struct {
		name  string
		kinds []schema.GroupVersionKind
		start func(context.Context) error
	}{
		{"DPF", []schema.GroupVersionKind{hypershift.DPUClusterKind(), hypershift.DPUFlavorKind()}, reconciler.WatchDPF},
		{
			"HyperShift",
			[]schema.GroupVersionKind{hypershift.HostedClusterKind(), hypershift.NodePoolKind()}, reconciler.WatchHyperShift,
		},
		{
			"MetalLB",
			[]schema.GroupVersionKind{hypershift.IPAddressPoolKind(), hypershift.L2AdvertisementKind()}, reconciler.WatchMetalLB,
		},
	} {
		start := func(ctx context.Context, _ ctrl.Manager) error { return project.start(ctx) }
		if err := a.startWhenInstalled(ctx, mgr, project.name, project.kinds, start); err != nil {
			return err
		}
	}

	return a.setUpCSRApproval(ctx, mgr)
}

// setUpCSRApproval adds the controller that approves the certificates of workers, if the configuration
// enables it.
func (a *Area) setUpCSRApproval(ctx context.Context, mgr ctrl.Manager) error {
	if !a.Config.CSRApproval {
		return nil
	}

	approver := &csr.Approver{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Recorder: mgr.GetEventRecorder("hyperfleet"),
		Registry: a.Registry, Clock: a.Clock, Log: a.Log, WrapTransport: a.WrapHostedTransport, Concurrency: a.Config.Concurrency,
	}

	start := func(_ context.Context, mgr ctrl.Manager) error { return approver.SetupWithManager(mgr) }

	return a.startWhenInstalled(ctx, mgr, "DPF workers", []schema.GroupVersionKind{csr.DPUKind()}, start)
}

// startWhenInstalled calls start at once if all required kinds are installed, so that no bridge reports
// them as missing at startup. Otherwise it adds a waiter to the manager, which calls start when the kinds
// are installed.
func (a *Area) startWhenInstalled(
	ctx context.Context, mgr ctrl.Manager, name string, required []schema.GroupVersionKind,
	start func(context.Context, ctrl.Manager) error,
) error {
	isInstalled := true

	for _, kind := range required {
		_, err := mgr.GetRESTMapper().RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil && !meta.IsNoMatchError(err) {
			return fmt.Errorf("look up kind %s: %w", kind.Kind, err)
		}

		isInstalled = isInstalled && err == nil
	}

	if isInstalled {
		return start(ctx, mgr)
	}

	waiter := &watch.KindWaiter{
		Area: "bridge: " + name, Kinds: required, Manager: mgr, Clock: a.Clock, Log: a.Log, SetupWithManager: start,
	}
	if err := mgr.Add(waiter); err != nil {
		return fmt.Errorf("add waiter for the kinds of %s: %w", name, err)
	}

	return nil
}

// ParseRanges parses address ranges.
func ParseRanges(entries []string) ([]netipx.IPRange, error) {
	out := make([]netipx.IPRange, 0, len(entries))

	for _, entry := range entries {
		r, err := address.Parse(entry)
		if err != nil {
			return nil, fmt.Errorf("parse address ranges: %w", err)
		}

		out = append(out, r)
	}

	return out, nil
}
