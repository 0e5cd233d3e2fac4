// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor/tenancy"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/connect"
)

// checkQuota checks that spec.allowedNamespaces of the cluster allows the claim's namespace to have the
// machine. If the namespace has a quota, checkQuota returns hasQuota and leaves s.placementLock locked. The
// caller must unlock it after it has recorded the placement, so that the next claim counts this machine.
func (s *scope) checkQuota(ctx context.Context) (hasQuota bool, err error) {
	entry, err := s.checkAccess(ctx)
	if err != nil || entry == nil || entry.Quota == nil {
		return false, err
	}

	s.placementLock.Lock()

	taken, err := s.usedQuota(ctx)
	if err == nil {
		err = tenancy.CheckQuota(entry, s.cluster.Name, s.claim.Namespace, taken)
	}

	if err != nil {
		s.placementLock.Unlock()

		return false, err
	}

	return true, nil
}

// checkAccess returns the entry of the cluster's allowedNamespaces that allows the machine in the claim's
// namespace. The entry is nil if the cluster does not restrict namespaces.
func (s *scope) checkAccess(ctx context.Context) (*v1alpha1.NamespaceAccess, error) {
	entry, err := tenancy.FindEntry(s.cluster, s.claim.Namespace, tenancy.NewLabelsFunc(ctx, s.Live, s.claim.Namespace))
	if err != nil {
		return nil, err
	}

	return entry, tenancy.CheckTemplate(entry, s.cluster, s.template)
}

// recheckAccess repeats the check before the machine is created and started, because its template may have
// changed since it was placed, and a person may have written the placement to the status. It returns Done
// if the machine is allowed.
func (s *scope) recheckAccess(ctx context.Context) step.Result {
	_, err := s.checkAccess(ctx)

	switch {
	case err == nil:
		return step.Done()
	case errclass.ClassOf(err) == errclass.Configuration:
		return step.Wait(resyncInterval, errclass.ReasonOf(err, tenancy.ReasonNamespace), err.Error())
	default:
		return connect.NewErrorResult(err, pollInterval, tenancy.ReasonNamespace)
	}
}

// usedQuota returns the resources of all machines of the claim's namespace on its cluster, including this
// machine.
func (s *scope) usedQuota(ctx context.Context) (tenancy.Usage, error) {
	var (
		out    tenancy.Usage
		claims v1alpha1.MachineClaimList
	)

	out.Add(*newPlacedResources(s.template))

	// The cache may not have the claims that were placed just now.
	if err := s.Live.List(ctx, &claims, client.InNamespace(s.claim.Namespace)); err != nil {
		return out, fmt.Errorf("list machine claims of namespace %s: %w", s.claim.Namespace, err)
	}

	for i := range claims.Items {
		vm := claims.Items[i].Status.VMRef
		if vm == nil || vm.HypervisorCluster != s.cluster.Name || claims.Items[i].UID == s.claim.UID {
			continue
		}

		// A machine has the resources that it was placed with, even if its template has changed.
		if vm.Resources == nil {
			vm.Resources = &v1alpha1.PlacedResources{} // placed by an older operator that did not record the resources
		}

		out.Add(*vm.Resources)
	}

	return out, nil
}

// newPlacedResources returns the resources of a template's machine that a quota counts.
func newPlacedResources(template *v1alpha1.HypervisorMachineTemplate) *v1alpha1.PlacedResources {
	return &v1alpha1.PlacedResources{CPU: template.Spec.Resources.CPU, Memory: template.Spec.Resources.Memory}
}
