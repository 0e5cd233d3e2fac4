// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

const (
	// lookAgain is how soon something outside that raises no event is looked at again.
	lookAgain = 5 * time.Second
	// safety is how soon a machine is looked at though its provider has not woken us.
	safety = 30 * time.Second
)

// reasonTemplateNotFound is that of a claim whose template is gone.
const reasonTemplateNotFound = "TemplateNotFound"

// resolve finds the template, the cluster and its connection. Both must be ready for a
// machine to be made; a machine that is there is followed whatever became of them.
func resolve(ctx context.Context, s *scope) step.Result {
	if s.claim.Status.Phase == "" {
		s.claim.Status.Phase = v1alpha1.MachineClaimPending
	}

	if result := s.find(ctx); !result.IsDone() {
		return result
	}

	if s.claim.Status.VMRef != nil {
		return step.Done()
	}

	return mayMake(s.template, s.cluster)
}

// mayMake says whether a machine may be made from a template on a cluster. It is pure.
func mayMake(template *v1alpha1.HypervisorMachineTemplate, cluster *v1alpha1.HypervisorCluster) step.Result {
	if !step.IsReady(template) {
		return step.Wait(0, "TemplateNotReady",
			fmt.Sprintf("HypervisorMachineTemplate %q is not ready: %s", template.Name, step.WhyNot(template)))
	}

	if !step.IsReady(cluster) {
		return step.Wait(lookAgain, "ClusterNotReady",
			fmt.Sprintf("HypervisorCluster %q is not ready: %s", cluster.Name, step.WhyNot(cluster)))
	}

	return step.Done()
}

// find fills the scope: with the template, which the runner's deregistration needs, also where the
// cluster is not there or not connected.
func (s *scope) find(ctx context.Context) step.Result {
	var template v1alpha1.HypervisorMachineTemplate

	name := client.ObjectKey{Namespace: s.claim.Namespace, Name: s.claim.Spec.TemplateRef.Name}

	err := s.Client.Get(ctx, name, &template)

	switch {
	case apierrors.IsNotFound(err):
		return step.Wait(0, reasonTemplateNotFound,
			fmt.Sprintf("there is no HypervisorMachineTemplate %q in namespace %s: create it, or delete this claim",
				name.Name, name.Namespace))
	case err != nil:
		return step.Fail(fmt.Errorf("get template %s: %w", name, err))
	}

	resize(&template, s.claim.Spec.Size)
	asPlaced(&template, s.claim.Status.VMRef)
	s.template = &template

	clusterName := template.Spec.HypervisorClusterRef.Name
	if s.claim.Status.VMRef != nil {
		clusterName = s.claim.Status.VMRef.HypervisorCluster
	}

	var cluster v1alpha1.HypervisorCluster

	err = s.Client.Get(ctx, client.ObjectKey{Name: clusterName}, &cluster)

	switch {
	case apierrors.IsNotFound(err):
		return step.Wait(lookAgain, "ClusterNotFound", fmt.Sprintf("there is no HypervisorCluster %q", clusterName))
	case err != nil:
		return step.Fail(fmt.Errorf("get cluster %s: %w", clusterName, err))
	}

	provider, ok := s.Clusters.Get(clusterName)
	if !ok {
		notConnected := step.Wait(connect.StartPause, "ClusterNotConnected",
			fmt.Sprintf("HypervisorCluster %q is not connected: %s", clusterName, step.WhyNot(&cluster)))
		if step.IsReady(&cluster) { // this operator has just been started
			return notConnected.Unhurried()
		}

		return notConnected
	}

	s.cluster, s.provider = &cluster, provider
	s.names = vmspec.NamesOf(s.claim, &template, &cluster, s.Settings.NamespaceInHostname)

	return step.Done()
}

// resize gives the template the size that the claim asks for: to all that follows it is the
// template's own. It is pure.
func resize(template *v1alpha1.HypervisorMachineTemplate, size *v1alpha1.MachineSize) {
	if size == nil {
		return
	}

	resources := &template.Spec.Resources
	if size.CPU != nil {
		resources.CPU = *size.CPU
	}

	if size.Memory != nil {
		resources.Memory = *size.Memory
	}

	if size.Disk != nil {
		resources.Disk = size.Disk
	}
}

// asPlaced gives the template the size that the machine was placed with, and that a quota counts:
// it is made so, whatever the template says by now. It is pure.
func asPlaced(template *v1alpha1.HypervisorMachineTemplate, vm *v1alpha1.VMReference) {
	if vm != nil && vm.Resources != nil && vm.Resources.CPU > 0 {
		template.Spec.Resources.CPU, template.Spec.Resources.Memory = vm.Resources.CPU, vm.Resources.Memory
	}
}
