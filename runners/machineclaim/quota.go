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

// withinQuota makes sure that the cluster lets the claim's namespace have the machine. Where
// there is a quota, machines are placed one after the other: counted says so, and s.placing
// is held then until the machine is on record, where the next one counts it.
func (s *scope) withinQuota(ctx context.Context) (counted bool, err error) {
	entry, err := s.allowed(ctx)
	if err != nil || entry == nil || entry.Quota == nil {
		return false, err
	}

	s.placing.Lock()

	taken, err := s.taken(ctx)
	if err == nil {
		err = tenancy.CheckQuota(entry, s.cluster.Name, s.claim.Namespace, taken)
	}

	if err != nil {
		s.placing.Unlock()

		return false, err
	}

	return true, nil
}

// allowed gives the entry of the cluster's allowedNamespaces that lets the claim's namespace have
// the machine; nil where all may do anything.
func (s *scope) allowed(ctx context.Context) (*v1alpha1.NamespaceAccess, error) {
	entry, err := tenancy.Find(s.cluster, s.claim.Namespace, tenancy.LabelsOf(ctx, s.Live, s.claim.Namespace))
	if err != nil {
		return nil, err
	}

	return entry, tenancy.Check(entry, s.cluster, s.template)
}

// stillAllowed looks once more before the machine is made and started: its template may have
// changed since it was placed, and somebody else may have written where it is placed.
func (s *scope) stillAllowed(ctx context.Context) (step.Result, bool) {
	if _, err := s.allowed(ctx); err != nil {
		result := connect.Outcome(err, lookAgain, tenancy.ReasonNamespace)
		if errclass.Of(err) == errclass.Configuration {
			result = step.Wait(safety, errclass.Reason(err, tenancy.ReasonNamespace), err.Error())
		}

		return result, false
	}

	return step.Result{}, true
}

// taken is what the machines of the claim's namespace take on its cluster, this one included.
func (s *scope) taken(ctx context.Context) (tenancy.Taken, error) {
	var (
		out    tenancy.Taken
		claims v1alpha1.MachineClaimList
	)

	out.Add(*placed(s.template))

	// The cache may lack those that were placed just now.
	if err := s.Live.List(ctx, &claims, client.InNamespace(s.claim.Namespace)); err != nil {
		return out, fmt.Errorf("list machine claims of namespace %s: %w", s.claim.Namespace, err)
	}

	for i := range claims.Items {
		vm := claims.Items[i].Status.VMRef
		if vm == nil || vm.HypervisorCluster != s.cluster.Name || claims.Items[i].UID == s.claim.UID {
			continue
		}

		// Whatever its template says by now, it has what it was placed with.
		if vm.Resources == nil {
			vm.Resources = &v1alpha1.PlacedResources{} // placed by an operator that did not write it down
		}

		out.Add(*vm.Resources)
	}

	return out, nil
}

// placed are what a quota counts of a template's machine.
func placed(template *v1alpha1.HypervisorMachineTemplate) *v1alpha1.PlacedResources {
	return &v1alpha1.PlacedResources{CPU: template.Spec.Resources.CPU, Memory: template.Spec.Resources.Memory}
}
