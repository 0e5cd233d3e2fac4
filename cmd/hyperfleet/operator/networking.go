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

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/networking"
	"github.com/hyperfleet/hyperfleet/runners/connect"
)

// addNetworkingArea adds the controllers of the networking area to the manager.
func addNetworkingArea(
	ctx context.Context, mgr ctrl.Manager, cfg config.OperatorConfig, operatorUID string,
	transports *Transports, logger *slog.Logger,
) error {
	secrets := &connect.Secrets{Reader: mgr.GetAPIReader(), OperatorNamespace: cfg.Namespace}

	area := &networking.Area{
		Config: cfg.Networking, Registry: ctrlmetrics.Registry, Clock: clock.RealClock{}, Log: logger,
		OperatorUID: operatorUID, Calls: transports.calls,
		// A HypervisorCluster has no namespace, so its Secrets are read without the check of allowed
		// namespaces.
		Secret: func(ctx context.Context, sel v1alpha1.SecretKeySelector, to credential.Destination) (string, error) {
			return secrets.ReadValueFor(ctx, sel, "", to)
		},
	}
	if err := area.Setup(ctx, mgr); err != nil {
		return fmt.Errorf("set up networking area: %w", err)
	}

	return nil
}
