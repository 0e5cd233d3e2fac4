// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"log/slog"

	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	v1alpha1 "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// addBridgeArea adds the controllers of the bridge area to the manager.
func addBridgeArea(
	ctx context.Context, mgr ctrl.Manager, cfg v1alpha1.OperatorConfig, transports *Transports, logger *slog.Logger,
) error {
	registries, err := transports.newRegistryTransport(cfg.Bridge.RegistryCAFile)
	if err != nil {
		return err
	}

	area := &bridge.Area{
		Config: cfg.Bridge, Registry: ctrlmetrics.Registry, Clock: clock.RealClock{}, Log: logger,
		RegistryTransport: registries, WrapHostedTransport: transports.wrapHostedCluster,
	}
	if err := area.Setup(ctx, mgr); err != nil {
		return fmt.Errorf("set up bridge area: %w", err)
	}

	return nil
}

// validateBridge checks the rules that the types of the configuration cannot express.
func validateBridge(cfg v1alpha1.Bridge) error {
	if cfg.Concurrency < 1 {
		return strictyaml.ErrorAt("bridge.concurrency", "it must be at least 1")
	}

	if cfg.HyperShiftNamespace == "" {
		return strictyaml.ErrorAt("bridge.hyperShiftNamespace", "it must name the namespace that HyperShift runs in")
	}

	if cfg.MetalLBNamespace == "" {
		return strictyaml.ErrorAt("bridge.metalLBNamespace", "it must name the namespace that MetalLB runs in")
	}

	if _, err := bridge.ParseRanges(cfg.AddressRanges); err != nil {
		return strictyaml.ErrorAt("bridge.addressRanges", "%w", err)
	}

	return nil
}
