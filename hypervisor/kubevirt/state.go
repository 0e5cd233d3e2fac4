// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	virtv1 "kubevirt.io/api/core/v1"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// strategyOf is a machine's run strategy, with the older field `running` in its words.
func strategyOf(vm *virtv1.VirtualMachine) virtv1.VirtualMachineRunStrategy {
	strategy, err := vm.RunStrategy()
	if err != nil {
		return virtv1.RunStrategyUnknown
	}

	return strategy
}

// describe gives a machine of ours as callers see it. instance is nil when there is none.
func describe(
	vm *virtv1.VirtualMachine, instance *virtv1.VirtualMachineInstance, record Record,
) hypervisor.Machine {
	m := hypervisor.Machine{
		ID: record.ID, Name: vm.Name, Owner: record.Owner(), Created: record.CreatedAt,
		Cloned: vm.Status.PrintableStatus != "" && vm.Status.PrintableStatus != virtv1.VirtualMachineStatusProvisioning,
	}

	if instance != nil {
		m.Node, m.IP, m.MAC, m.Cloned = instance.Status.NodeName, ipOf(instance), macOf(instance), true
	}

	m.State, m.Message = stateOf(vm, instance)

	return m
}

// stateOf reads the state out of both objects (KubeVirt, "VirtualMachine run
// strategies" and "Lifecycle").
func stateOf(vm *virtv1.VirtualMachine, instance *virtv1.VirtualMachineInstance) (hypervisor.State, string) {
	if vm.DeletionTimestamp != nil {
		return hypervisor.StateDeleting, "it is being deleted"
	}

	if instance == nil {
		return withoutInstance(vm)
	}

	switch instance.Status.Phase {
	case virtv1.Running, virtv1.Unknown:
		// Unknown is an instance whose node does not answer: it may run.
		return hypervisor.StateRunning, ""
	case virtv1.Succeeded:
		return hypervisor.StateStopped, "it powered off"
	case virtv1.Failed:
		return hypervisor.StateStopped, "it failed " + instance.Status.Reason
	default:
		return hypervisor.StateCreating, fmt.Sprintf("it is %s %s", phaseOf(instance), whyWaiting(instance))
	}
}

func withoutInstance(vm *virtv1.VirtualMachine) (hypervisor.State, string) {
	switch strategy := strategyOf(vm); {
	case strategy == virtv1.RunStrategyManual, strategy == virtv1.RunStrategyHalted && vm.Status.RunStrategy != "":
		// KubeVirt writes status.runStrategy with the first instance and keeps it.
		return hypervisor.StateStopped, "it ran, and its instance is gone"
	case vm.Status.PrintableStatus == virtv1.VirtualMachineStatusProvisioning:
		return hypervisor.StateCreating, "its disk is being made"
	case isTroubled(vm.Status.PrintableStatus):
		return hypervisor.StateCreating, "KubeVirt says " + string(vm.Status.PrintableStatus)
	case strategy != virtv1.RunStrategyHalted:
		return hypervisor.StateCreating, "it is being started"
	case vm.Status.PrintableStatus == "":
		return hypervisor.StateCreating, "KubeVirt has not seen it yet"
	default:
		return hypervisor.StatePrepared, ""
	}
}

func isTroubled(status virtv1.VirtualMachinePrintableStatus) bool {
	switch status {
	case virtv1.VirtualMachineStatusPvcNotFound, virtv1.VirtualMachineStatusDataVolumeError,
		virtv1.VirtualMachineStatusWaitingForVolumeBinding:
		return true
	default:
		return false
	}
}

func phaseOf(instance *virtv1.VirtualMachineInstance) string {
	if instance.Status.Phase == virtv1.VmPhaseUnset {
		return string(virtv1.Pending)
	}

	return string(instance.Status.Phase)
}

// whyWaiting is what keeps an instance from running, in Kubernetes' and KubeVirt's words.
func whyWaiting(instance *virtv1.VirtualMachineInstance) string {
	for _, c := range instance.Status.Conditions {
		telling := c.Type == virtv1.VirtualMachineInstanceConditionType(corev1.PodScheduled) ||
			c.Type == virtv1.VirtualMachineInstanceSynchronized

		if telling && c.Status == corev1.ConditionFalse {
			return c.Reason + ": " + c.Message
		}
	}

	return ""
}

// ipOf is the first address of the first interface that reports one.
func ipOf(instance *virtv1.VirtualMachineInstance) string {
	for _, i := range instance.Status.Interfaces {
		if i.IP != "" {
			return i.IP
		}
	}

	return ""
}

func macOf(instance *virtv1.VirtualMachineInstance) string {
	for _, i := range instance.Status.Interfaces {
		if i.MAC != "" {
			return i.MAC
		}
	}

	return ""
}
