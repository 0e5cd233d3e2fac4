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
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/crdgate"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/networking/claims"
	"github.com/hyperfleet/hyperfleet/networking/dns"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
	"github.com/hyperfleet/hyperfleet/networking/machine"
	"github.com/hyperfleet/hyperfleet/networking/nodepool"
	"github.com/hyperfleet/hyperfleet/networking/pools"
	"github.com/hyperfleet/hyperfleet/networking/validate"
)

// Area is what the networking area needs of its process.
type Area struct {
	Config   config.Networking
	Registry prometheus.Registerer
	Clock    clock.WithTicker
	Log      *slog.Logger
	// OperatorUID is on the marks of DNS records.
	OperatorUID string
	// Secret reads credentials of DNS services.
	Secret dns.ReadSecret
	// Calls notes calls to other systems; may be nil.
	Calls *metrics.Calls
}

// Addresses makes an address registry, and that of the templates that have pools in it, which
// are filled by Rebuild with what the API server has on record.
func Addresses(live client.Reader) (*pools.AddressRegistry, *claims.Registry) {
	addresses := pools.New()
	registry := claims.NewRegistry(addresses)
	addresses.ReadPoolsFrom(claims.PoolReader(live, registry), nodepool.Reader(live))
	addresses.ReadFrom(claims.Reader(live, registry), machine.Reader(live))

	return addresses, registry
}

// Setup adds the area's controllers to the manager. Those for KubeVirt start when its kinds
// are there.
func (a *Area) Setup(ctx context.Context, mgr ctrl.Manager) error {
	steps, err := step.NewMetrics(a.Registry)
	if err != nil {
		return fmt.Errorf("set up steps: %w", err)
	}

	if err := a.names(ctx, mgr, steps); err != nil {
		return err
	}

	addresses, registry := Addresses(mgr.GetAPIReader())

	for _, collector := range []prometheus.Collector{pools.NewCollector(addresses), nodepool.NewCollector(addresses)} {
		if err := a.Registry.Register(collector); err != nil {
			return fmt.Errorf("register metrics of address pools: %w", err)
		}
	}

	if err := mgr.AddReadyzCheck("addresses", addresses.Check); err != nil {
		return fmt.Errorf("add readiness check: %w", err)
	}

	if err := a.claims(mgr, addresses, registry); err != nil {
		return err
	}

	gate := &crdgate.Gate{
		Area: "networking: KubeVirt machines", Kinds: []schema.GroupVersionKind{kubevirt.VirtualMachineKind(), kubevirt.InstanceKind()},
		Manager: mgr, Clock: a.Clock, Log: a.Log,
		Open: func(_ context.Context, mgr ctrl.Manager) error { return a.kubevirt(mgr, addresses, registry, steps) },
	}
	if err := mgr.Add(gate); err != nil {
		return fmt.Errorf("add gate of KubeVirt's kinds: %w", err)
	}

	return nil
}

// claims adds what gives MachineClaims the addresses of their templates' pools.
func (a *Area) claims(mgr ctrl.Manager, addresses *pools.AddressRegistry, registry *claims.Registry) error {
	templates := &claims.Templates{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Addresses: addresses, Registry: registry, Clock: a.Clock,
	}
	if err := templates.SetupWithManager(mgr); err != nil {
		return err
	}

	machines := &claims.Claims{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Addresses: addresses, Registry: registry,
		Recorder: mgr.GetEventRecorder("hyperfleet"), Clock: a.Clock, Concurrency: a.Config.Concurrency,
	}

	return machines.SetupWithManager(mgr)
}

// names adds what writes machines into DNS and looks at them from outside.
func (a *Area) names(ctx context.Context, mgr ctrl.Manager, steps *step.Metrics) error {
	err := dns.SetupWithManager(ctx, mgr, dns.Options{
		Secret: a.Secret, OperatorUID: a.OperatorUID, Calls: a.Calls, StepMetrics: steps, Clock: a.Clock, Log: a.Log,
	})
	if err != nil {
		return err
	}

	return validate.SetupWithManager(mgr, validate.Options{Clock: a.Clock, Calls: a.Calls})
}

// kubevirt adds the controllers of KubeVirt machines.
func (a *Area) kubevirt(
	mgr ctrl.Manager, addresses *pools.AddressRegistry, registry *claims.Registry, steps *step.Metrics,
) error {
	recorder := mgr.GetEventRecorder("hyperfleet")
	runner := func(name string) *step.Runner {
		return &step.Runner{Client: mgr.GetClient(), Controller: name, Clock: a.Clock, Metrics: steps, Recorder: recorder}
	}

	machines := &machine.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Runner: runner("kubevirtmachine"), Recorder: recorder,
		Addresses: addresses, Clock: a.Clock, Concurrency: a.Config.Concurrency,
	}
	if err := machines.SetupWithManager(mgr); err != nil {
		return err
	}

	nodePools := &nodepool.Reconciler{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Runner: runner("kubevirtnodepool"), Recorder: recorder,
		Addresses: addresses, Owner: registry.Owner, Clock: a.Clock,
	}

	return nodePools.SetupWithManager(mgr)
}
