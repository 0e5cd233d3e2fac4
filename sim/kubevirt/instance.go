// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

const (
	reasonImagePull = "ErrImagePull"
	podScheduled    = virtv1.VirtualMachineInstanceConditionType(corev1.PodScheduled)
)

var errNotRunning = errors.New("VM is not running")

// reconcileInstance does what virt-controller and virt-handler do for a VirtualMachineInstance. It takes
// one step and updates the object. The update triggers the next step.
func (c *Cluster) reconcileInstance(
	ctx context.Context, vm *virtv1.VirtualMachine, instance *virtv1.VirtualMachineInstance,
) error {
	before := instance.DeepCopy()

	if err := c.advanceInstance(ctx, instance); err != nil {
		return err
	}

	if instance.IsFinal() {
		c.stopGuest(instance.UID)
		controllerutil.RemoveFinalizer(instance, virtv1.VirtualMachineInstanceFinalizer)

		if vm == nil {
			controllerutil.RemoveFinalizer(instance, virtv1.VirtualMachineControllerFinalizer)
		}
	}

	if reflect.DeepEqual(before, instance) {
		return nil
	}

	// A VirtualMachineInstance has no status subresource, so one update writes both spec and status.
	err := c.client.Update(ctx, instance)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("update instance: %w", err)
	}

	return nil
}

func (c *Cluster) advanceInstance(ctx context.Context, instance *virtv1.VirtualMachineInstance) error {
	key := client.ObjectKeyFromObject(instance)

	if instance.IsFinal() {
		return nil
	}

	if end := c.endPhaseOf(instance); end != "" {
		c.finish(instance, end)

		return nil
	}

	if instance.DeletionTimestamp != nil {
		// An instance that has not started yet has no guest to shut down.
		if !instance.IsRunning() || c.hasElapsed(key, instance.UID, "stop", c.currentDelays().Stop) {
			c.finish(instance, virtv1.Succeeded)
		}

		return nil
	}

	switch instance.Status.Phase {
	case virtv1.VmPhaseUnset:
		c.setPhase(instance, virtv1.Pending)
	case virtv1.Pending:
		c.setPhase(instance, virtv1.Scheduling)
	case virtv1.Scheduling:
		return c.schedule(ctx, instance)
	case virtv1.Scheduled:
		if c.hasElapsed(key, instance.UID, "boot", c.currentDelays().Boot) {
			return c.boot(ctx, instance)
		}
	case virtv1.Running:
	default:
	}

	return nil
}

// endPhaseOf returns the final phase that the guest or a fault has set for the instance, "" if it still runs.
func (c *Cluster) endPhaseOf(instance *virtv1.VirtualMachineInstance) virtv1.VirtualMachineInstancePhase {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.lostNodes[instance.Status.NodeName] {
		return virtv1.Failed
	}

	return c.endPhases[instance.UID]
}

func (c *Cluster) setPhase(instance *virtv1.VirtualMachineInstance, phase virtv1.VirtualMachineInstancePhase) {
	instance.Status.Phase = phase
	instance.Status.PhaseTransitionTimestamps = append(instance.Status.PhaseTransitionTimestamps,
		virtv1.VirtualMachineInstancePhaseTransitionTimestamp{
			Phase: phase, PhaseTransitionTimestamp: metav1.NewTime(c.clock.Now()),
		})
}

func (c *Cluster) finish(instance *virtv1.VirtualMachineInstance, phase virtv1.VirtualMachineInstancePhase) {
	c.setPhase(instance, phase)
	c.setCondition(instance, virtv1.VirtualMachineInstanceReady, corev1.ConditionFalse, virtv1.GuestNotRunningReason,
		"Guest VM is not reported as running")

	if c.isLost(instance.Status.NodeName) {
		instance.Status.Reason = "NodeUnresponsive"
	}
}

// schedule chooses a node for the instance's pod, if the pod's image and Secrets exist.
func (c *Cluster) schedule(ctx context.Context, instance *virtv1.VirtualMachineInstance) error {
	key := client.ObjectKeyFromObject(instance)

	if !c.hasElapsed(key, instance.UID, "schedule", c.currentDelays().Schedule) {
		return nil
	}

	if image := c.findMissingImage(&instance.Spec); image != "" {
		c.setCondition(instance, virtv1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, reasonImagePull,
			fmt.Sprintf("failed to pull and unpack image %q: not found", image))

		return nil
	}

	// A pod stays in ContainerCreating until its Secrets exist.
	if _, err := c.loadDrive(ctx, instance); err != nil {
		c.queue.AddAfter(key, retryAfter)

		return nil
	}

	c.scheduleMu.Lock()
	defer c.scheduleMu.Unlock()

	node, err := c.chooseNode(ctx, instance, "")
	if err != nil {
		return err
	}

	if node == "" {
		lack := "memory"
		for name := range deviceDemand(&instance.Spec) {
			lack = string(name)
		}

		c.setCondition(instance, podScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable,
			fmt.Sprintf("0/%d nodes are available: %[1]d Insufficient %s.", len(c.options.Nodes), lack))
		c.queue.AddAfter(key, retryAfter)

		return nil
	}

	clearCondition(instance, podScheduled)
	clearCondition(instance, virtv1.VirtualMachineInstanceSynchronized)

	instance.Status.NodeName = node
	if instance.Labels == nil {
		instance.Labels = map[string]string{}
	}

	instance.Labels[virtv1.NodeNameLabel] = node
	c.setPhase(instance, virtv1.Scheduled)

	// Update the instance while the lock is held, so that the next instance counts its memory as used.
	if err := c.client.Update(ctx, instance); err != nil {
		return fmt.Errorf("schedule instance: %w", err)
	}

	return nil
}

func (c *Cluster) findMissingImage(spec *virtv1.VirtualMachineInstanceSpec) string {
	for _, v := range spec.Volumes {
		if disk := v.ContainerDisk; disk != nil && len(c.options.Images) > 0 && !slices.Contains(c.options.Images, disk.Image) {
			return disk.Image
		}
	}

	return ""
}

// boot starts the guest, and writes the status that its agent reports.
func (c *Cluster) boot(ctx context.Context, instance *virtv1.VirtualMachineInstance) error {
	drive, err := c.loadDrive(ctx, instance)
	if err != nil {
		return err
	}

	instance.Status.Interfaces = c.reportInterfaces(instance, drive)
	c.setCondition(instance, virtv1.VirtualMachineInstanceReady, corev1.ConditionTrue, "", "")
	c.setCondition(instance, virtv1.VirtualMachineInstanceIsMigratable, corev1.ConditionTrue, "", "")
	c.setCondition(instance, virtv1.VirtualMachineInstanceAgentConnected, corev1.ConditionTrue, "", "")
	c.setPhase(instance, virtv1.Running)

	if err := c.client.Update(ctx, instance); err != nil {
		return fmt.Errorf("boot instance: %w", err)
	}

	c.startGuest(instance, drive)

	return nil
}

func (c *Cluster) setCondition(
	instance *virtv1.VirtualMachineInstance, kind virtv1.VirtualMachineInstanceConditionType,
	status corev1.ConditionStatus, reason, message string,
) {
	condition := virtv1.VirtualMachineInstanceCondition{
		Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(c.clock.Now()),
	}

	for i, old := range instance.Status.Conditions {
		if old.Type != kind {
			continue
		}

		if old.Status != status || old.Reason != reason || old.Message != message {
			instance.Status.Conditions[i] = condition
		}

		return
	}

	instance.Status.Conditions = append(instance.Status.Conditions, condition)
}

func clearCondition(instance *virtv1.VirtualMachineInstance, kind virtv1.VirtualMachineInstanceConditionType) {
	instance.Status.Conditions = slices.DeleteFunc(instance.Status.Conditions,
		func(x virtv1.VirtualMachineInstanceCondition) bool { return x.Type == kind })
}

func isConditionTrue(instance *virtv1.VirtualMachineInstance, kind virtv1.VirtualMachineInstanceConditionType) bool {
	return slices.ContainsFunc(instance.Status.Conditions, func(x virtv1.VirtualMachineInstanceCondition) bool {
		return x.Type == kind && x.Status == corev1.ConditionTrue
	})
}

func conditionReason(instance *virtv1.VirtualMachineInstance, kind virtv1.VirtualMachineInstanceConditionType) string {
	for _, x := range instance.Status.Conditions {
		if x.Type == kind {
			return x.Reason
		}
	}

	return ""
}
