// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/tenancy"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

// reasonTemplateNotFound is the reason of a claim whose template does not exist.
const reasonTemplateNotFound = "TemplateNotFound"

// resolve loads the template, the cluster and its connection. Template and cluster must be ready before a
// machine is created. A machine that exists is reconciled even if they are not ready.
func resolve(ctx context.Context, s *scope) step.Result {
	if s.claim.Status.Phase == "" {
		s.claim.Status.Phase = v1alpha1.MachineClaimPending
	}

	if result := s.load(ctx); !result.IsDone() {
		return result
	}

	if s.claim.Status.VMRef != nil {
		return step.Done()
	}

	return checkReady(s.template, s.cluster)
}

// checkReady returns Done if the template and the cluster are ready, and a wait otherwise. It is pure.
func checkReady(template *v1alpha1.HypervisorMachineTemplate, cluster *v1alpha1.HypervisorCluster) step.Result {
	if !step.IsReady(template) {
		return step.Wait(0, "TemplateNotReady",
			fmt.Sprintf("HypervisorMachineTemplate %q is not ready: %s", template.Name, step.NotReadyMessage(template)))
	}

	if !step.IsReady(cluster) {
		return step.Wait(pollInterval, "ClusterNotReady",
			fmt.Sprintf("HypervisorCluster %q is not ready: %s", cluster.Name, step.NotReadyMessage(cluster)))
	}

	return step.Done()
}

// load sets the template, the cluster and the provider of the scope. It sets the template even if the
// cluster does not exist or is not connected, because deregistration of the runner needs only the template.
func (s *scope) load(ctx context.Context) step.Result {
	var template v1alpha1.HypervisorMachineTemplate

	name := client.ObjectKey{Namespace: s.claim.Namespace, Name: s.claim.Spec.TemplateRef.Name}

	err := s.Client.Get(ctx, name, &template)

	switch {
	case apierrors.IsNotFound(err):
		return step.Wait(0, reasonTemplateNotFound,
			fmt.Sprintf("HypervisorMachineTemplate %q does not exist in namespace %s: create it, or delete this claim",
				name.Name, name.Namespace))
	case err != nil:
		return step.Fail(fmt.Errorf("get template %s: %w", name, err))
	}

	applySize(&template, s.claim.Spec.Size)
	applyPlacedSize(&template, s.claim.Status.VMRef)
	s.template = &template

	clusterName := template.Spec.HypervisorClusterRef.Name
	if s.claim.Status.VMRef != nil {
		clusterName = s.claim.Status.VMRef.HypervisorCluster
	}

	var cluster v1alpha1.HypervisorCluster

	err = s.Client.Get(ctx, client.ObjectKey{Name: clusterName}, &cluster)

	switch {
	case apierrors.IsNotFound(err):
		return step.Wait(pollInterval, "ClusterNotFound", fmt.Sprintf("HypervisorCluster %q does not exist", clusterName))
	case err != nil:
		return step.Fail(fmt.Errorf("get cluster %s: %w", clusterName, err))
	}

	provider, ok := s.Clusters.Get(clusterName)
	if !ok {
		notConnected := step.Wait(connect.StartupRequeueDelay, "ClusterNotConnected",
			fmt.Sprintf("HypervisorCluster %q is not connected: %s", clusterName, step.NotReadyMessage(&cluster)))
		if step.IsReady(&cluster) { // the operator has just started
			return notConnected.DeferWrite()
		}

		return notConnected
	}

	s.cluster, s.provider = &cluster, provider
	s.names = vmspec.NewNames(s.claim, &template, &cluster, s.Settings.NamespaceInHostname)

	return step.Done()
}

// applySize overrides the resources of the template with the size in the claim. It changes the passed copy
// of the template only.
func applySize(template *v1alpha1.HypervisorMachineTemplate, size *v1alpha1.MachineSize) {
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

// applyPlacedSize overrides the CPU and memory of the template with those that were recorded when the
// machine was placed, and that the quota counts. So a later change of the template does not change the size
// of the machine.
func applyPlacedSize(template *v1alpha1.HypervisorMachineTemplate, vm *v1alpha1.VMReference) {
	if vm != nil && vm.Resources != nil && vm.Resources.CPU > 0 {
		template.Spec.Resources.CPU, template.Spec.Resources.Memory = vm.Resources.CPU, vm.Resources.Memory
	}
}

// place reserves an ID and a node for the machine, and records them in the claim's status before the
// machine is created.
func place(ctx context.Context, s *scope) step.Result {
	status := &s.claim.Status
	if status.VMRef != nil {
		return step.Done()
	}

	if result := s.checkCreateBackoff(v1alpha1.ConditionPlaced); !result.IsDone() {
		return result
	}

	if result := s.admit(v1alpha1.ConditionPlaced, s.hypervisorCause()); !result.IsDone() {
		return result
	}

	share, err := s.takeQuota(ctx)
	if err != nil {
		return connect.NewErrorResult(err, pollInterval, tenancy.ReasonNamespace)
	}

	defer share.release()

	spec := s.newMachineSpec()

	reserved, err := s.provider.Reserve(ctx, spec)
	if hypervisor.Is(err, hypervisor.NoCapacity) {
		return connect.NewErrorResult(nameAddresses(err, spec), pollInterval, "NoCapacity") // the machine waits
	}

	if err != nil {
		return s.handleCreateError(v1alpha1.ConditionPlaced, err, "NotPlaced")
	}

	s.recordSuccess(s.hypervisorCause())

	machine, isStarted, err := s.findStarted(ctx, reserved)
	if err != nil {
		return waitForHypervisor(err)
	}

	if result := s.readBackAddresses(ctx, reserved, machine); !result.IsDone() {
		return result
	}

	status.VMRef = &v1alpha1.VMReference{
		HypervisorCluster: s.cluster.Name, VMID: strconv.Itoa(reserved.ID), Node: reserved.Node,
		OperatorUID: s.Settings.OperatorUID, Resources: newPlacedResources(s.template),
	}

	if status.NetworkInfo == nil {
		status.NetworkInfo = &v1alpha1.NetworkInfo{} // if it exists, it holds the addresses of the machine
	}

	status.NetworkInfo.Hostname, status.NetworkInfo.FQDN = s.names.Hostname, s.names.FQDN
	status.BootstrapInfo = &v1alpha1.BootstrapInfo{
		RunnerName: vmspec.RunnerName(s.claim), Identity: vmspec.NewMachineIdentity(s.claim, s.template, s.Settings),
	}
	s.times().Placed = s.now()
	status.Phase = v1alpha1.MachineClaimProvisioning

	if isStarted {
		if err := s.adoptMachine(ctx); err != nil {
			return step.Fail(err)
		}
	}

	if share != nil {
		share.isWriteSent = true

		if err := step.SaveStatus(ctx); err != nil {
			return step.Fail(err)
		}
	}

	return step.Done()
}

// findStarted returns the claim's VM if it exists, and whether it was started although the claim's status does not say
// so, because the claim was restored without its status.
func (s *scope) findStarted(
	ctx context.Context, reserved hypervisor.Reservation,
) (machine hypervisor.Machine, isStarted bool, err error) {
	if !reserved.Exists {
		return hypervisor.Machine{}, false, nil
	}

	ref := s.machineRef()
	ref.ID = reserved.ID

	machine, err = s.provider.Get(ctx, ref)
	if hypervisor.Is(err, hypervisor.NotFound) {
		return machine, false, nil
	}

	return machine, machine.State == hypervisor.StateRunning || machine.State == hypervisor.StateStopped, err
}

// adoptMachine records that the claim's VM was started, and the job that its runner has taken. The VM is not started
// again, and gets neither another credential nor another job.
func (s *scope) adoptMachine(ctx context.Context) error {
	info := s.claim.Status.BootstrapInfo

	if err := s.recordTakenJob(ctx); err != nil {
		return err
	}

	if s.needsJob() {
		info.BoundJob = info.Job // the runner was created for this job
	}

	s.times().CloneStarted, s.times().Cloned = s.now(), s.now()
	s.completeProvision(ctx)
	s.eventf(ctx, corev1.EventTypeNormal, "Adopted", "Provision", "VM %s on node %s was started before the claim's status was lost",
		s.claim.Status.VMRef.VMID, s.claim.Status.VMRef.Node)

	return nil
}

// machineRef returns the reference to the claim's machine, with the ownership record that the machine carries
// at the hypervisor. The ID is 0 until an ID is reserved.
func (s *scope) machineRef() hypervisor.MachineRef {
	ref := hypervisor.MachineRef{Owner: hypervisor.Owner{
		Namespace: s.claim.Namespace, Name: s.claim.Name, UID: string(s.claim.UID),
		Pool: s.claim.PoolName(),
	}}

	if s.claim.Status.VMRef != nil {
		ref.ID, _ = strconv.Atoi(s.claim.Status.VMRef.VMID)
	}

	return ref
}

// newMachineSpec returns the specification of the claim's machine for the hypervisor.
func (s *scope) newMachineSpec() hypervisor.MachineSpec {
	ref := s.machineRef()
	spec := hypervisor.MachineSpec{
		Owner:    ref.Owner,
		ID:       ref.ID,
		Hostname: s.names.Hostname,
		Template: vmspec.NewSourceRef(s.template),
		Shape:    vmspec.NewShape(s.template),
		Strategy: hypervisor.Strategy(s.claim.Spec.Placement),
		Standby:  s.claim.Spec.Standby,
		Network:  vmspec.NewNetworkOptions(s.claim, s.template, s.names),
	}

	if s.claim.Status.VMRef != nil {
		spec.Node = s.claim.Status.VMRef.Node
	}

	return spec
}
