// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/networking/claimstatus"
	"github.com/hyperfleet/hyperfleet/networking/dns"
)

//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=kubevirtmachines,verbs=get;list;watch
//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=kubevirtnodepools,verbs=list;watch
//+kubebuilder:rbac:groups=infrastructure.hyperfleet.io,resources=kubevirtmachines/status,verbs=patch

// addKubevirtMachines adds the controller that validates KubevirtMachines to a manager.
func addKubevirtMachines(mgr ctrl.Manager, opts Options) error {
	r := newReconciler(mgr, opts)
	r.find = findKubevirtMachine

	err := claimstatus.NewKubevirtMachineController(mgr, "kubevirtvalidation").
		WithOptions(controller.Options{MaxConcurrentReconciles: concurrency}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("add controller kubevirtvalidation: %w", err)
	}

	return nil
}

// findKubevirtMachine reads a machine from its object, its node pool and the node pool's cluster. It
// returns nil if there is no such machine.
func findKubevirtMachine(ctx context.Context, reader client.Reader, key client.ObjectKey) (*subject, error) {
	var machine infrav1.KubevirtMachine
	if err := reader.Get(ctx, key, &machine); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil, nil //nolint:nilnil // a missing machine is not an error
		}

		return nil, fmt.Errorf("get KubevirtMachine %s: %w", key, err)
	}

	out := &subject{object: &machine, noAddressMessage: "the machine has no static address: addresses from DHCP are unknown"}
	if machine.DeletionTimestamp != nil {
		return out, nil
	}

	name, err := dns.ResolveKubevirtName(ctx, reader, &machine)

	switch {
	case apierrors.IsNotFound(err):
		return out, nil
	case err != nil:
		return nil, err
	case name == nil:
		out.hasNoSettings = true

		return out, nil
	case !machine.Status.Ready:
		return out, nil
	}

	out.cluster, out.fqdn, out.domain, out.addrs = name.Cluster, name.FQDN, name.Domain, name.Addresses
	if ready := meta.FindStatusCondition(machine.Status.Conditions, step.Ready); ready != nil {
		out.readySince = ready.LastTransitionTime.Time
	}

	return out, nil
}
