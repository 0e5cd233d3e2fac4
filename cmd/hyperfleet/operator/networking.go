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

// addNetworkingArea adds the controllers of the networking area to the manager if the configuration enables
// the area.
func addNetworkingArea(
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
		// A HypervisorCluster has no namespace, so its Secrets are read without the check of allowed
		// namespaces.
		Secret: func(ctx context.Context, sel v1alpha1.SecretKeySelector, to credential.Destination) (string, error) {
			return secrets.ValueFor(ctx, sel, "", to)
		},
	}
	if err := area.Setup(ctx, mgr); err != nil {
		return fmt.Errorf("set up networking area: %w", err)
	}

	return nil
}

// LeaseName returns the name of the Lease for leader election of a process that runs the given areas, such as
// hyperfleet-runners or hyperfleet-networking-runners. All replicas of a Deployment run the same areas and
// share the Lease. Two Deployments must not run the same area, because the area would have two leaders.
func LeaseName(controllers []string) string {
	names := slices.Clone(controllers)
	slices.Sort(names)

	return "hyperfleet-" + strings.Join(slices.Compact(names), "-")
}
