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

// instance does virt-controller's and virt-handler's part for a VirtualMachineInstance.
// It takes one step: the change of the object brings the next.
func (c *Cluster) instance(
	ctx context.Context, vm *virtv1.VirtualMachine, instance *virtv1.VirtualMachineInstance,
) error {
	before := instance.DeepCopy()

	if err := c.advance(ctx, instance); err != nil {
		return err
	}

	if instance.IsFinal() {
		c.endGuest(instance.UID)
		controllerutil.RemoveFinalizer(instance, virtv1.VirtualMachineInstanceFinalizer)

		if vm == nil {
			controllerutil.RemoveFinalizer(instance, virtv1.VirtualMachineControllerFinalizer)
		}
	}

	if reflect.DeepEqual(before, instance) {
		return nil
	}

	// A VirtualMachineInstance has no status subresource: one write changes all of it.
	err := c.client.Update(ctx, instance)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("report instance: %w", err)
	}

	return nil
}

func (c *Cluster) advance(ctx context.Context, instance *virtv1.VirtualMachineInstance) error {
	key := client.ObjectKeyFromObject(instance)

	if instance.IsFinal() {
		return nil
	}

	if end := c.endOf(instance); end != "" {
		c.finish(instance, end)

		return nil
	}

	if instance.DeletionTimestamp != nil {
		// A machine that was not started yet has nobody in it to say goodbye to.
		if !instance.IsRunning() || c.after(key, instance.UID, "stop", c.wait().Stop) {
			c.finish(instance, virtv1.Succeeded)
		}

		return nil
	}

	switch instance.Status.Phase {
	case virtv1.VmPhaseUnset:
		c.enter(instance, virtv1.Pending)
	case virtv1.Pending:
		c.enter(instance, virtv1.Scheduling)
	case virtv1.Scheduling:
		return c.schedule(ctx, instance)
	case virtv1.Scheduled:
		if c.after(key, instance.UID, "boot", c.wait().Boot) {
			return c.boot(ctx, instance)
		}
	case virtv1.Running:
	default:
	}

	return nil
}

// endOf is the phase that the guest or a fault has ended the instance with.
func (c *Cluster) endOf(instance *virtv1.VirtualMachineInstance) virtv1.VirtualMachineInstancePhase {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.lost[instance.Status.NodeName] {
		return virtv1.Failed
	}

	return c.ended[instance.UID]
}

func (c *Cluster) enter(instance *virtv1.VirtualMachineInstance, phase virtv1.VirtualMachineInstancePhase) {
	instance.Status.Phase = phase
	instance.Status.PhaseTransitionTimestamps = append(instance.Status.PhaseTransitionTimestamps,
		virtv1.VirtualMachineInstancePhaseTransitionTimestamp{
			Phase: phase, PhaseTransitionTimestamp: metav1.NewTime(c.clock.Now()),
		})
}

func (c *Cluster) finish(instance *virtv1.VirtualMachineInstance, phase virtv1.VirtualMachineInstancePhase) {
	c.enter(instance, phase)
	c.set(instance, virtv1.VirtualMachineInstanceReady, corev1.ConditionFalse, virtv1.GuestNotRunningReason,
		"Guest VM is not reported as running")

	if c.isLost(instance.Status.NodeName) {
		instance.Status.Reason = "NodeUnresponsive"
	}
}

// schedule finds a node for the instance's pod, once what the pod mounts is there.
func (c *Cluster) schedule(ctx context.Context, instance *virtv1.VirtualMachineInstance) error {
	key := client.ObjectKeyFromObject(instance)

	if !c.after(key, instance.UID, "schedule", c.wait().Schedule) {
		return nil
	}

	if image := c.missingImage(&instance.Spec); image != "" {
		c.set(instance, virtv1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, reasonImagePull,
			fmt.Sprintf("failed to pull and unpack image %q: not found", image))

		return nil
	}

	// A pod waits in ContainerCreating for a Secret that is not there.
	if _, err := c.drive(ctx, instance); err != nil {
		c.queue.AddAfter(key, retryAfter)

		return nil
	}

	c.scheduling.Lock()
	defer c.scheduling.Unlock()

	node, err := c.pick(ctx, instance, "")
	if err != nil {
		return err
	}

	if node == "" {
		c.set(instance, podScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable,
			fmt.Sprintf("0/%d nodes are available: %[1]d Insufficient memory.", len(c.options.Nodes)))
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
	c.enter(instance, virtv1.Scheduled)

	// Written while the lock is held, so that the memory counts for the next.
	if err := c.client.Update(ctx, instance); err != nil {
		return fmt.Errorf("place instance: %w", err)
	}

	return nil
}

func (c *Cluster) missingImage(spec *virtv1.VirtualMachineInstanceSpec) string {
	for _, v := range spec.Volumes {
		if disk := v.ContainerDisk; disk != nil && len(c.options.Images) > 0 && !slices.Contains(c.options.Images, disk.Image) {
			return disk.Image
		}
	}

	return ""
}

// boot starts the guest and reports what its agent says.
func (c *Cluster) boot(ctx context.Context, instance *virtv1.VirtualMachineInstance) error {
	drive, err := c.drive(ctx, instance)
	if err != nil {
		return err
	}

	instance.Status.Interfaces = c.interfaces(instance, drive)
	c.set(instance, virtv1.VirtualMachineInstanceReady, corev1.ConditionTrue, "", "")
	c.set(instance, virtv1.VirtualMachineInstanceIsMigratable, corev1.ConditionTrue, "", "")
	c.set(instance, virtv1.VirtualMachineInstanceAgentConnected, corev1.ConditionTrue, "", "")
	c.enter(instance, virtv1.Running)

	if err := c.client.Update(ctx, instance); err != nil {
		return fmt.Errorf("report boot: %w", err)
	}

	c.startGuest(instance, drive)

	return nil
}

func (c *Cluster) set(
	instance *virtv1.VirtualMachineInstance, kind virtv1.VirtualMachineInstanceConditionType,
	status corev1.ConditionStatus, reason, message string,
) {
	want := virtv1.VirtualMachineInstanceCondition{
		Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(c.clock.Now()),
	}

	for i, old := range instance.Status.Conditions {
		if old.Type != kind {
			continue
		}

		if old.Status != status || old.Reason != reason || old.Message != message {
			instance.Status.Conditions[i] = want
		}

		return
	}

	instance.Status.Conditions = append(instance.Status.Conditions, want)
}

func clearCondition(instance *virtv1.VirtualMachineInstance, kind virtv1.VirtualMachineInstanceConditionType) {
	instance.Status.Conditions = slices.DeleteFunc(instance.Status.Conditions,
		func(x virtv1.VirtualMachineInstanceCondition) bool { return x.Type == kind })
}

func isTrue(instance *virtv1.VirtualMachineInstance, kind virtv1.VirtualMachineInstanceConditionType) bool {
	return slices.ContainsFunc(instance.Status.Conditions, func(x virtv1.VirtualMachineInstanceCondition) bool {
		return x.Type == kind && x.Status == corev1.ConditionTrue
	})
}

func reasonOf(instance *virtv1.VirtualMachineInstance, kind virtv1.VirtualMachineInstanceConditionType) string {
	for _, x := range instance.Status.Conditions {
		if x.Type == kind {
			return x.Reason
		}
	}

	return ""
}
