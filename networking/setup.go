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
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/keep"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/kit/watch"
	"github.com/hyperfleet/hyperfleet/networking/claims"
	"github.com/hyperfleet/hyperfleet/networking/dns"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
	"github.com/hyperfleet/hyperfleet/networking/machine"
	"github.com/hyperfleet/hyperfleet/networking/nodepool"
	"github.com/hyperfleet/hyperfleet/networking/pools"
	"github.com/hyperfleet/hyperfleet/networking/validate"
)

// Area holds what the networking area needs from its process.
type Area struct {
	Config   config.Networking
	Registry prometheus.Registerer
	Clock    clock.WithTicker
	Log      *slog.Logger
	// OperatorUID identifies the operator in the ownership records of DNS records.
	OperatorUID string
	// Secret reads the credentials of DNS services.
	Secret dns.SecretReader
	// Calls records metrics of calls to other systems. It may be nil.
	Calls *metrics.CallMetrics
}

// NewRegistries returns an empty address registry, and an empty registry of the templates whose address pools
// are in the address registry. Rebuild fills both from the objects at the API server, which it reads through apiReader.
func NewRegistries(apiReader client.Reader) (*pools.AddressRegistry, *claims.TemplateRegistry) {
	addresses := pools.New()
	templateRegistry := claims.NewRegistry(addresses)
	addresses.AddPoolReaders(claims.NewPoolReader(apiReader, templateRegistry), nodepool.NewPoolReader(apiReader))
	addresses.AddReaders(claims.NewReader(apiReader, templateRegistry), machine.NewReader(apiReader))

	return addresses, templateRegistry
}

// Setup adds the controllers of the area to the manager. The controllers for KubeVirt machines start when the
// API server serves the KubeVirt kinds.
func (a *Area) Setup(ctx context.Context, mgr ctrl.Manager) error {
	stepMetrics, err := step.NewMetrics(a.Registry)
	if err != nil {
		return fmt.Errorf("create metrics of steps: %w", err)
	}

	if err := a.addDNSAndValidation(ctx, mgr, stepMetrics); err != nil {
		return err
	}

	addresses, templateRegistry := NewRegistries(mgr.GetAPIReader())

	for _, collector := range []prometheus.Collector{pools.NewCollector(addresses), nodepool.NewCollector(addresses)} {
		if err := a.Registry.Register(collector); err != nil {
			return fmt.Errorf("register metrics of address pools: %w", err)
		}
	}

	if err := mgr.AddReadyzCheck("addresses", addresses.Check); err != nil {
		return fmt.Errorf("add readiness check: %w", err)
	}

	if err := a.addClaims(mgr, addresses, templateRegistry); err != nil {
		return err
	}

	waiter := &watch.KindWaiter{
		Area: "networking: KubeVirt machines", Kinds: []schema.GroupVersionKind{kubevirt.VirtualMachineKind(), kubevirt.InstanceKind()},
		Manager: mgr, Clock: a.Clock, Log: a.Log,
		SetupWithManager: func(_ context.Context, mgr ctrl.Manager) error {
			return a.addKubeVirt(mgr, addresses, templateRegistry, stepMetrics)
		},
	}
	if err := mgr.Add(waiter); err != nil {
		return fmt.Errorf("add waiter for the KubeVirt kinds: %w", err)
	}

	return nil
}

// addClaims adds the controllers that allocate addresses from the templates' pools to MachineClaims.
func (a *Area) addClaims(mgr ctrl.Manager, addresses *pools.AddressRegistry, templateRegistry *claims.TemplateRegistry) error {
	templates := &claims.TemplateReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Addresses: addresses, Registry: templateRegistry, Clock: a.Clock,
	}
	if err := templates.SetupWithManager(mgr); err != nil {
		return err
	}

	machines := &claims.ClaimReconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Addresses: addresses, Registry: templateRegistry,
		Recorder: mgr.GetEventRecorder("hyperfleet"), Clock: a.Clock, Concurrency: a.Config.Concurrency,
	}

	return machines.SetupWithManager(mgr)
}

// addDNSAndValidation adds the controllers that register machines in DNS and that validate names and addresses.
func (a *Area) addDNSAndValidation(ctx context.Context, mgr ctrl.Manager, stepMetrics *step.Metrics) error {
	err := dns.SetupWithManager(ctx, mgr, dns.Options{
		Secret: a.Secret, OperatorUID: a.OperatorUID, Calls: a.Calls, StepMetrics: stepMetrics, Clock: a.Clock, Log: a.Log,
	})
	if err != nil {
		return err
	}

	return validate.SetupWithManager(mgr, validate.Options{Clock: a.Clock, Calls: a.Calls})
}

// addKubeVirt adds the controllers of KubeVirt machines and node pools.
func (a *Area) addKubeVirt(
	mgr ctrl.Manager, addresses *pools.AddressRegistry, templateRegistry *claims.TemplateRegistry, stepMetrics *step.Metrics,
) error {
	recorder := mgr.GetEventRecorder("hyperfleet")
	newRunner := func(name string) *step.Reconciler {
		return &step.Reconciler{Client: mgr.GetClient(), Controller: name, Clock: a.Clock, Metrics: stepMetrics, Recorder: recorder}
	}

	machines := &machine.Reconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Runner: newRunner("kubevirtmachine"), Recorder: recorder,
		Addresses: addresses, Clock: a.Clock, Concurrency: a.Config.Concurrency,
	}
	if err := machines.SetupWithManager(mgr); err != nil {
		return err
	}

	nodePools := &nodepool.Reconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Runner: newRunner("kubevirtnodepool"), Recorder: recorder,
		Addresses: addresses, PoolOwner: templateRegistry.PoolOwner, Clock: a.Clock,
		Keeper: &keep.Keeper{
			Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), Area: "networking", Role: keep.RoleName, Clock: a.Clock,
			Lists: []client.ObjectList{&infrav1.KubevirtNodePoolList{}},
		},
	}

	return nodePools.SetupWithManager(mgr)
}
