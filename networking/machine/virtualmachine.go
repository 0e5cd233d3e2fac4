// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
)

// ensureVM creates the VirtualMachine, or updates the name of its Secret with network data.
func ensureVM(ctx context.Context, s *scope) step.Result {
	if s.vm == nil {
		return s.createVM(ctx)
	}

	if !metav1.IsControlledBy(s.vm, s.machine) {
		return s.stall("VMNotOurs", fmt.Sprintf(
			"the VirtualMachine %q does not belong to this machine: delete the VirtualMachine or the machine", s.vm.GetName()))
	}

	if s.vm.GetDeletionTimestamp() != nil {
		return step.Wait(requeueDelay, "VMDeleting",
			"somebody else deletes the VirtualMachine, so it is recreated with the same addresses")
	}

	// If a person has corrected the status because two machines have the same address, the VirtualMachine has other
	// addresses than the status.
	before := s.vm.DeepCopy()
	hasNewNetworkData := s.network.name != "" && kubevirt.NetworkDataSecret(s.vm) != s.network.name
	hasNewAddresses := kubevirt.RecordAddresses(s.vm, s.machine)

	if !hasNewAddresses && !hasNewNetworkData {
		return step.Done()
	}

	if hasNewNetworkData {
		kubevirt.SetNetworkDataSecret(s.vm, s.network.name)
	}

	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := s.Client.Patch(ctx, s.vm, patch); err != nil {
		return step.Fail(fmt.Errorf("update network data of virtual machine: %w", err))
	}

	if hasNewNetworkData {
		s.Recorder.Eventf(s.machine, nil, corev1.EventTypeWarning, "NetworkDataChanged", "Configure",
			"the VirtualMachine gets its new addresses when it is restarted")
	}

	return step.Done()
}

// createVM creates the VirtualMachine. If one with this name exists, it continues with that one. It stalls if the
// API server rejects the VirtualMachine.
func (s *scope) createVM(ctx context.Context) step.Result {
	vm, err := kubevirt.NewVirtualMachine(s.machine, s.network.name, s.network.format)
	if err != nil {
		return s.stall("InvalidTemplate", err.Error())
	}

	s.machine.Status.Phase = v1alpha1.KubevirtMachineProvisioning

	switch err := s.Client.Create(ctx, vm); {
	case apierrors.IsAlreadyExists(err):
		return s.adoptVM(ctx)
	case errclass.IsOverQuota(err): // the machine itself is valid, so retry
		return step.Fail(fmt.Errorf("create virtual machine: %w", err))
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err):
		return s.stall("VMRejected", fmt.Sprintf("create virtual machine: %v", err))
	case err != nil:
		return step.Fail(fmt.Errorf("create virtual machine: %w", err))
	}

	s.vm = vm

	return step.Done()
}

// adoptVM reads a VirtualMachine that the cache does not have yet, and continues with it.
func (s *scope) adoptVM(ctx context.Context) step.Result {
	vm, err := s.getObject(ctx, s.APIReader, kubevirt.NewObject(kubevirt.VirtualMachineKind()))

	switch {
	case err != nil:
		return step.Fail(err)
	case vm == nil:
		return step.Wait(requeueDelay, "VMDeleting", "a VirtualMachine with the same name was just deleted")
	}

	s.vm = vm

	if kubevirt.IsRestored(vm, s.machine) { // it was restored after its machine
		if result := readBack(ctx, s); !result.IsDone() {
			return result
		}
	}

	return ensureVM(ctx, s)
}

// isOwned returns whether a VirtualMachine belongs to the machine or to an earlier object with its name.
func isOwned(vm *unstructured.Unstructured, machine *v1alpha1.KubevirtMachine) bool {
	return metav1.IsControlledBy(vm, machine) || kubevirt.IsRestored(vm, machine)
}

// isRunning returns whether a VirtualMachine is ready, which means that its instance has started.
func isRunning(vm *unstructured.Unstructured) bool {
	ready, _, _ := unstructured.NestedBool(vm.Object, "status", "ready")

	return ready
}

// printableStatus returns the state of a VirtualMachine in one word, as KubeVirt reports it.
func printableStatus(vm *unstructured.Unstructured) string {
	status, _, _ := unstructured.NestedString(vm.Object, "status", "printableStatus")

	return status
}

// reportVM writes the state of the VirtualMachine into the machine's status, and waits until the
// VirtualMachine runs.
func reportVM(_ context.Context, s *scope) step.Result {
	status := &s.machine.Status
	status.Ready = isRunning(s.vm)
	status.ProviderID = "kubevirt://" + s.machine.Name

	if s.instance != nil {
		if node, _, _ := unstructured.NestedString(s.instance.Object, "status", "nodeName"); node != "" {
			status.NodeName = node
		}
	}

	state := printableStatus(s.vm)

	switch {
	case status.Ready:
		status.Phase = v1alpha1.KubevirtMachineRunning

		if node := evacuatedNode(s.instance); node != "" {
			return step.Done().WithReason("EvictionPending", fmt.Sprintf(
				"node %s is being drained and waits for this machine, because its evictionStrategy is External: delete the KubevirtMachine; "+
					"KubeVirt moves machines whose virtualMachineTemplate has LiveMigrateIfPossible", node))
		}

		return step.Done().WithReason("Running", "on node "+status.NodeName)
	case slices.Contains([]string{"Stopped", "Stopping", "Paused"}, state):
		status.Phase = v1alpha1.KubevirtMachineStopped

		return step.Wait(0, state, "somebody stopped or paused the VirtualMachine; the machine keeps its addresses")
	case state == "":
		state = "Provisioning"
	}

	status.Phase = v1alpha1.KubevirtMachineProvisioning

	return step.Wait(0, state, describeNotReady(s.vm))
}

// evacuatedNode returns the node that is being drained and that an instance has to leave, although KubeVirt does not move
// it. It returns "" for any other instance.
func evacuatedNode(instance *unstructured.Unstructured) string {
	if instance == nil {
		return ""
	}

	if strategy, _, _ := unstructured.NestedString(instance.Object, "spec", "evictionStrategy"); strategy != "External" {
		return ""
	}

	node, _, _ := unstructured.NestedString(instance.Object, "status", "evacuationNodeName")

	return node
}

// describeNotReady returns KubeVirt's message about why a VirtualMachine is not ready, or a default message.
func describeNotReady(vm *unstructured.Unstructured) string {
	conditions, _, _ := unstructured.NestedSlice(vm.Object, "status", "conditions")

	for _, entry := range conditions {
		condition, _ := entry.(map[string]any)
		isFailure := condition["type"] == "Failure" && condition["status"] == "True" ||
			condition["type"] == "Ready" && condition["status"] == "False"

		if message, _ := condition["message"].(string); isFailure && message != "" {
			return message
		}
	}

	return "the VirtualMachine is not running yet"
}
