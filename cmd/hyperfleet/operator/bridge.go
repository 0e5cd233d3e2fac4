// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	v1alpha1 "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// bridgeArea adds the bridge area, if it is chosen.
func bridgeArea(
	ctx context.Context, mgr ctrl.Manager, cfg v1alpha1.OperatorConfig, transports *Transports, logger *slog.Logger,
) error {
	if !slices.Contains(cfg.Controllers, v1alpha1.AreaBridge) {
		return nil
	}

	registries, err := trusting("bridge.registryCAFile", cfg.Bridge.RegistryCAFile)
	if err != nil {
		return err
	}

	area := &bridge.Area{
		Config: cfg.Bridge, Registry: ctrlmetrics.Registry, Clock: clock.RealClock{}, Log: logger,
		Transport: transports.registry(registries), Hosted: transports.hosted,
	}
	if err := area.Setup(ctx, mgr); err != nil {
		return fmt.Errorf("set up bridge: %w", err)
	}

	return nil
}

// bridgeSettings checks what the types can't say.
func bridgeSettings(cfg v1alpha1.Bridge) error {
	if cfg.Concurrency < 1 {
		return strictyaml.ErrorAt("bridge.concurrency", "it must be at least 1")
	}

	if cfg.HyperShiftNamespace == "" {
		return strictyaml.ErrorAt("bridge.hyperShiftNamespace", "it must name the namespace that HyperShift runs in")
	}

	if cfg.MetalLBNamespace == "" {
		return strictyaml.ErrorAt("bridge.metalLBNamespace", "it must name the namespace that MetalLB runs in")
	}

	if _, err := bridge.Ranges(cfg.AddressRanges); err != nil {
		return strictyaml.ErrorAt("bridge.addressRanges", "%w", err)
	}

	return nil
}
