// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	v1alpha1 "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts"
	"github.com/hyperfleet/hyperfleet/hosts/scaleway"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// addHostsArea adds the controllers of the hosts area to the manager.
func addHostsArea(ctx context.Context, mgr ctrl.Manager, cfg v1alpha1.OperatorConfig, transports *Transports) error {
	area := &hosts.Area{
		Egress: transports.egress,
		Config: cfg.Hosts, Registry: ctrlmetrics.Registry, Clock: clock.RealClock{}, Calls: transports.calls,
		Transport: func(next http.RoundTripper) http.RoundTripper {
			return transports.calls.WrapTransport("scaleway", scaleway.Operation, transports.guardWrites(next))
		},
	}
	if err := area.Setup(ctx, mgr); err != nil {
		return fmt.Errorf("set up hosts area: %w", err)
	}

	return nil
}

// validateHosts checks the rules that the types of the configuration cannot express.
func validateHosts(cfg v1alpha1.Hosts) error {
	for key, value := range map[string]int{
		"hosts.concurrency": cfg.Concurrency, "hosts.pushes": cfg.Pushes,
		"hosts.maxUpdateAttempts": cfg.MaxUpdateAttempts, "hosts.maxBootstrapAttempts": cfg.MaxBootstrapAttempts,
	} {
		if value < 1 {
			return strictyaml.ErrorAt(key, "it must be at least 1")
		}
	}

	for key, value := range map[string]time.Duration{
		"hosts.scriptTimeout": cfg.ScriptTimeout, "hosts.retryBase": cfg.RetryBase, "hosts.retryCap": cfg.RetryCap,
	} {
		if value < time.Second {
			return strictyaml.ErrorAt(key, "it must be a duration of at least 1s")
		}
	}

	if cfg.ProbeInterval < 0 {
		return strictyaml.ErrorAt("hosts.probeInterval", "it must not be negative; 0 disables probes")
	}

	return nil
}
