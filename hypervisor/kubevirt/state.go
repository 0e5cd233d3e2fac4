// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	virtv1 "kubevirt.io/api/core/v1"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// runStrategyOf returns a machine's run strategy. It converts the older field `running` to a run
// strategy, and returns Unknown if both fields are set.
func runStrategyOf(vm *virtv1.VirtualMachine) virtv1.VirtualMachineRunStrategy {
	strategy, err := vm.RunStrategy()
	if err != nil {
		return virtv1.RunStrategyUnknown
	}

	return strategy
}

// newMachine converts a machine of this operator for callers. instance is nil if the machine has none.
func newMachine(
	vm *virtv1.VirtualMachine, instance *virtv1.VirtualMachineInstance, record Record,
) hypervisor.Machine {
	m := hypervisor.Machine{
		ID: record.ID, Name: vm.Name, Owner: record.Owner(), CreatedAt: record.CreatedAt,
		Cloned: vm.Status.PrintableStatus != "" && vm.Status.PrintableStatus != virtv1.VirtualMachineStatusProvisioning,
	}

	if instance != nil {
		m.Node, m.IP, m.MAC, m.Cloned = instance.Status.NodeName, firstIP(instance), firstMAC(instance), true
	}

	m.State, m.Message = machineState(vm, instance)

	return m
}

// machineState returns the state of a machine and a message for people (see KubeVirt, "VirtualMachine
// run strategies" and "Lifecycle").
func machineState(vm *virtv1.VirtualMachine, instance *virtv1.VirtualMachineInstance) (hypervisor.State, string) {
	if vm.DeletionTimestamp != nil {
		return hypervisor.StateDeleting, "the machine is being deleted"
	}

	if instance == nil {
		return stateWithoutInstance(vm)
	}

	switch instance.Status.Phase {
	case virtv1.Running, virtv1.Unknown:
		// The phase is Unknown if the node does not respond. The instance may still run.
		return hypervisor.StateRunning, ""
	case virtv1.Succeeded:
		return hypervisor.StateStopped, "the machine powered off"
	case virtv1.Failed:
		return hypervisor.StateStopped, "the instance failed: " + instance.Status.Reason
	default:
		return hypervisor.StateCreating, fmt.Sprintf("the instance is %s %s", instancePhase(instance), waitingReason(instance))
	}
}

// stateWithoutInstance returns the state of a machine that has no instance, and a message for people.
func stateWithoutInstance(vm *virtv1.VirtualMachine) (hypervisor.State, string) {
	switch strategy := runStrategyOf(vm); {
	case strategy == virtv1.RunStrategyManual, strategy == virtv1.RunStrategyHalted && vm.Status.RunStrategy != "":
		// KubeVirt sets status.runStrategy when it creates the first instance, and never clears it.
		return hypervisor.StateStopped, "the machine ran, and its instance no longer exists"
	case vm.Status.PrintableStatus == virtv1.VirtualMachineStatusProvisioning:
		return hypervisor.StateCreating, "the disk is being created"
	case isVolumeProblem(vm.Status.PrintableStatus):
		return hypervisor.StateCreating, "KubeVirt reports the status " + string(vm.Status.PrintableStatus)
	case strategy != virtv1.RunStrategyHalted:
		return hypervisor.StateCreating, "the machine is being started"
	case vm.Status.PrintableStatus == "":
		return hypervisor.StateCreating, "KubeVirt has not reconciled the machine yet"
	default:
		return hypervisor.StatePrepared, ""
	}
}

func isVolumeProblem(status virtv1.VirtualMachinePrintableStatus) bool {
	switch status {
	case virtv1.VirtualMachineStatusPvcNotFound, virtv1.VirtualMachineStatusDataVolumeError,
		virtv1.VirtualMachineStatusWaitingForVolumeBinding:
		return true
	default:
		return false
	}
}

func instancePhase(instance *virtv1.VirtualMachineInstance) string {
	if instance.Status.Phase == virtv1.VmPhaseUnset {
		return string(virtv1.Pending)
	}

	return string(instance.Status.Phase)
}

// waitingReason returns the reason and the message of the condition that explains why the instance
// does not run. It returns "" if no condition does.
func waitingReason(instance *virtv1.VirtualMachineInstance) string {
	for _, c := range instance.Status.Conditions {
		isRelevant := c.Type == virtv1.VirtualMachineInstanceConditionType(corev1.PodScheduled) ||
			c.Type == virtv1.VirtualMachineInstanceSynchronized

		if isRelevant && c.Status == corev1.ConditionFalse {
			return c.Reason + ": " + c.Message
		}
	}

	return ""
}

// firstIP returns the first address of the first interface that reports one. A guest may report any text.
func firstIP(instance *virtv1.VirtualMachineInstance) string {
	for _, i := range instance.Status.Interfaces {
		if address, err := netip.ParseAddr(i.IP); err == nil && address.Zone() == "" {
			return i.IP
		}
	}

	return ""
}

func firstMAC(instance *virtv1.VirtualMachineInstance) string {
	for _, i := range instance.Status.Interfaces {
		if i.MAC != "" {
			return i.MAC
		}
	}

	return ""
}
