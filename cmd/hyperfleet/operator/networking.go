// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/networking"
	"github.com/hyperfleet/hyperfleet/runners/connect"
)

// networkingArea adds the networking area, if it is chosen.
func networkingArea(
	ctx context.Context, mgr ctrl.Manager, cfg config.OperatorConfig, operatorUID string,
	transports *Transports, logger *slog.Logger,
) error {
	if !slices.Contains(cfg.Controllers, config.AreaNetworking) {
		return nil
	}

	secrets := &connect.Secrets{Reader: mgr.GetAPIReader(), OperatorNamespace: cfg.Namespace}

	area := &networking.Area{
		Config: cfg.Networking, Registry: ctrlmetrics.Registry, Clock: clock.RealClock{}, Log: logger,
		OperatorUID: operatorUID, Calls: transports.calls,
		// A HypervisorCluster has no namespace: its Secrets are read as the operator.
		Secret: func(ctx context.Context, sel v1alpha1.SecretKeySelector, to credential.Sent) (string, error) {
			return secrets.ValueFor(ctx, sel, "", to)
		},
	}
	if err := area.Setup(ctx, mgr); err != nil {
		return fmt.Errorf("set up networking: %w", err)
	}

	return nil
}

// LeaseName names the Lease of a process that runs some areas: hyperfleet-runners,
// hyperfleet-networking, hyperfleet-networking-runners. Replicas run the same areas; an
// area that two Deployments run would have two leaders.
func LeaseName(controllers []string) string {
	names := slices.Clone(controllers)
	slices.Sort(names)

	return "hyperfleet-" + strings.Join(slices.Compact(names), "-")
}
