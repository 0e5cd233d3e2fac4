// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// reconcileVM does what virt-controller does for a VirtualMachine.
func (c *Cluster) reconcileVM(ctx context.Context, vm *virtv1.VirtualMachine) error {
	instance, err := get[virtv1.VirtualMachineInstance](ctx, c, client.ObjectKeyFromObject(vm))
	if err != nil {
		return err
	}

	if instance != nil && !metav1.IsControlledBy(instance, vm) {
		instance = nil
	}

	if vm.DeletionTimestamp != nil {
		return c.finalizeVM(ctx, vm, instance)
	}

	violations := Validate(vm)
	if err := c.compareWithWebhook(ctx, vm, violations); err != nil {
		return err
	}

	if len(violations) > 0 {
		c.recordViolation(vm, "VirtualMachine", strings.Join(violations, ", "))

		return nil // KubeVirt's webhook would have rejected the VirtualMachine
	}

	if controllerutil.AddFinalizer(vm, virtv1.VirtualMachineControllerFinalizer) {
		if err := c.client.Update(ctx, vm); err != nil {
			return fmt.Errorf("add finalizer: %w", err)
		}
	}

	ready, err := c.ensureVolumes(ctx, vm)
	if err != nil {
		return err
	}

	current := instance

	if strategy, err := vm.RunStrategy(); err == nil && (ready || strategy == virtv1.RunStrategyHalted) {
		if current, err = c.applyRunStrategy(ctx, vm, instance, strategy); err != nil {
			return err
		}
	}

	if err := c.writeVMStatus(ctx, vm, current, ready); err != nil {
		return err
	}

	return c.removeControllerFinalizer(ctx, current)
}

// finalizeVM deletes the instance and the volumes of a VirtualMachine that is being deleted, and then
// removes the finalizer.
func (c *Cluster) finalizeVM(
	ctx context.Context, vm *virtv1.VirtualMachine, instance *virtv1.VirtualMachineInstance,
) error {
	if instance != nil {
		if err := c.deleteInstance(ctx, instance); err != nil {
			return err
		}

		const isProvisioned = true
		if err := c.writeVMStatus(ctx, vm, instance, isProvisioned); err != nil {
			return err
		}

		return c.removeControllerFinalizer(ctx, instance)
	}

	if err := c.deleteVolumes(ctx, vm); err != nil {
		return err
	}

	if !controllerutil.RemoveFinalizer(vm, virtv1.VirtualMachineControllerFinalizer) {
		return nil
	}

	if err := c.client.Update(ctx, vm); err != nil {
		return fmt.Errorf("remove finalizer: %w", err)
	}

	return nil
}

// applyRunStrategy creates or deletes the instance as the run strategy and the state change requests
// demand. It returns the current instance, nil if there is none.
func (c *Cluster) applyRunStrategy(
	ctx context.Context, vm *virtv1.VirtualMachine, instance *virtv1.VirtualMachineInstance,
	strategy virtv1.VirtualMachineRunStrategy,
) (*virtv1.VirtualMachineInstance, error) {
	request := firstRequest(vm)
	isStopRequested := request == virtv1.StopRequest && instance != nil
	isStartRequested := request == virtv1.StartRequest

	switch strategy {
	case virtv1.RunStrategyHalted:
		if instance != nil {
			return instance, c.deleteInstance(ctx, instance)
		}

		return nil, nil //nolint:nilnil // nil means that there is no instance
	case virtv1.RunStrategyAlways:
		switch {
		case instance == nil:
			return c.createInstance(ctx, vm)
		case instance.IsFinal() || isStopRequested:
			return instance, c.deleteInstance(ctx, instance)
		}
	case virtv1.RunStrategyOnce:
		if instance == nil {
			return c.createInstance(ctx, vm)
		}
	case virtv1.RunStrategyRerunOnFailure:
		return c.applyRerunOnFailure(ctx, vm, instance, isStartRequested, isStopRequested)
	case virtv1.RunStrategyManual:
		switch {
		case instance == nil && isStartRequested:
			return c.createInstance(ctx, vm)
		case isStopRequested:
			return instance, c.deleteInstance(ctx, instance)
		}
	case virtv1.RunStrategyUnknown, virtv1.RunStrategyWaitAsReceiver:
		// Validate rejects both.
	}

	return instance, nil
}

func (c *Cluster) applyRerunOnFailure(
	ctx context.Context, vm *virtv1.VirtualMachine, instance *virtv1.VirtualMachineInstance,
	isStartRequested, isStopRequested bool,
) (*virtv1.VirtualMachineInstance, error) {
	if instance == nil {
		if !isStartRequested && vm.Status.RunStrategy == virtv1.RunStrategyRerunOnFailure {
			return nil, nil //nolint:nilnil // nil means that there is no instance
		}

		return c.createInstance(ctx, vm)
	}

	if instance.DeletionTimestamp != nil || (!isStopRequested && !instance.IsFinal()) {
		return instance, nil
	}

	if instance.Status.Phase == virtv1.Failed && !isStartRequested {
		vm.Status.StateChangeRequests = append(vm.Status.StateChangeRequests,
			virtv1.VirtualMachineStateChangeRequest{Action: virtv1.StartRequest})

		if err := c.client.Status().Update(ctx, vm); err != nil {
			return instance, fmt.Errorf("request another start: %w", err)
		}
	}

	return instance, c.deleteInstance(ctx, instance)
}

func firstRequest(vm *virtv1.VirtualMachine) virtv1.StateChangeRequestAction {
	if len(vm.Status.StateChangeRequests) == 0 {
		return ""
	}

	return vm.Status.StateChangeRequests[0].Action
}

// createInstance creates the machine's instance. If ValidateInstance rejects the instance, it records a
// violation and returns nil.
func (c *Cluster) createInstance(ctx context.Context, vm *virtv1.VirtualMachine) (*virtv1.VirtualMachineInstance, error) {
	if violations := ValidateInstance(vm); len(violations) > 0 {
		c.recordViolation(vm, "VirtualMachine", strings.Join(violations, ", "))

		return nil, nil //nolint:nilnil // nil means that there is no instance
	}

	instance := &virtv1.VirtualMachineInstance{
		ObjectMeta: *vm.Spec.Template.ObjectMeta.DeepCopy(),
		Spec:       *vm.Spec.Template.Spec.DeepCopy(),
	}
	instance.Name, instance.GenerateName, instance.Namespace = vm.Name, "", vm.Namespace
	instance.OwnerReferences = []metav1.OwnerReference{
		*metav1.NewControllerRef(vm, virtv1.VirtualMachineGroupVersionKind),
	}
	instance.Finalizers = append(instance.Finalizers,
		virtv1.VirtualMachineInstanceFinalizer, virtv1.VirtualMachineControllerFinalizer)
	setDefaultNetwork(&instance.Spec)

	err := c.client.Create(ctx, instance)
	if apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("start machine: an instance of another owner has its name: %w", err)
	}

	if err != nil {
		return nil, fmt.Errorf("start machine: %w", err)
	}

	c.mu.Lock()
	c.startCounts[vm.UID]++
	c.mu.Unlock()

	return instance, nil
}

// setDefaultNetwork adds the pod network to an instance whose spec has no networks and no interfaces,
// unless autoattachPodInterface is false.
func setDefaultNetwork(spec *virtv1.VirtualMachineInstanceSpec) {
	attach := spec.Domain.Devices.AutoattachPodInterface
	if len(spec.Networks) > 0 || len(spec.Domain.Devices.Interfaces) > 0 || (attach != nil && !*attach) {
		return
	}

	spec.Networks = []virtv1.Network{*virtv1.DefaultPodNetwork()}
	spec.Domain.Devices.Interfaces = []virtv1.Interface{*virtv1.DefaultMasqueradeNetworkInterface()}
}

// deleteInstance deletes the machine's instance, and reads the instance again.
func (c *Cluster) deleteInstance(ctx context.Context, instance *virtv1.VirtualMachineInstance) error {
	if instance.DeletionTimestamp != nil {
		return nil
	}

	err := c.client.Delete(ctx, instance)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("stop machine: %w", err)
	}

	// Read the instance again, because the deletion has changed it.
	err = c.client.Get(ctx, client.ObjectKeyFromObject(instance), instance)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("stop machine: %w", err)
	}

	return nil
}

// removeControllerFinalizer removes virt-controller's finalizer from an instance that has ended. Call it
// after the end of the instance is recorded in the VirtualMachine's status.
func (c *Cluster) removeControllerFinalizer(ctx context.Context, instance *virtv1.VirtualMachineInstance) error {
	if instance == nil || !instance.IsFinal() {
		return nil
	}

	if !controllerutil.RemoveFinalizer(instance, virtv1.VirtualMachineControllerFinalizer) {
		return nil
	}

	err := c.client.Update(ctx, instance)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove finalizer of instance: %w", err)
	}

	return nil
}

// writeVMStatus updates the VirtualMachine's status if it has changed. It removes a state change request
// that is complete.
func (c *Cluster) writeVMStatus(
	ctx context.Context, vm *virtv1.VirtualMachine, instance *virtv1.VirtualMachineInstance, provisioned bool,
) error {
	before := vm.Status.DeepCopy()
	status := &vm.Status
	status.Created = instance != nil
	status.Ready = instance != nil && isConditionTrue(instance, virtv1.VirtualMachineInstanceReady)
	status.DesiredGeneration = vm.Generation

	if strategy, err := vm.RunStrategy(); err == nil && (status.RunStrategy != "" || status.Created) {
		status.RunStrategy = strategy
	}

	// A request is complete when the requested state is reached.
	switch firstRequest(vm) {
	case virtv1.StartRequest:
		if instance != nil && instance.DeletionTimestamp == nil {
			status.StateChangeRequests = status.StateChangeRequests[1:]
		}
	case virtv1.StopRequest:
		requestedUID := status.StateChangeRequests[0].UID
		if instance == nil || (requestedUID != nil && *requestedUID != instance.UID) {
			status.StateChangeRequests = status.StateChangeRequests[1:]
		}
	}

	status.PrintableStatus = printableStatus(vm, instance, provisioned)
	c.setVMReady(vm, instance)

	if reflect.DeepEqual(before, status) {
		return nil
	}

	if err := c.client.Status().Update(ctx, vm); err != nil {
		return fmt.Errorf("update status of machine: %w", err)
	}

	return nil
}

func (c *Cluster) setVMReady(vm *virtv1.VirtualMachine, instance *virtv1.VirtualMachineInstance) {
	condition := virtv1.VirtualMachineCondition{
		Type: virtv1.VirtualMachineReady, Status: corev1.ConditionFalse, Reason: "VMINotExists", Message: "VMI does not exist",
	}

	switch {
	case instance == nil:
	case vm.Status.Ready:
		condition = virtv1.VirtualMachineCondition{Type: virtv1.VirtualMachineReady, Status: corev1.ConditionTrue}
	default:
		condition.Reason, condition.Message = "GuestNotRunning", "Guest VM is not reported as running"
	}

	condition.LastTransitionTime = metav1.NewTime(c.clock.Now())

	for i, old := range vm.Status.Conditions {
		if old.Type != condition.Type {
			continue
		}

		if old.Status != condition.Status || old.Reason != condition.Reason {
			vm.Status.Conditions[i] = condition
		}

		return
	}

	vm.Status.Conditions = append(vm.Status.Conditions, condition)
}

// printableStatus returns the printable status. The first case that applies decides.
func printableStatus(
	vm *virtv1.VirtualMachine, instance *virtv1.VirtualMachineInstance, provisioned bool,
) virtv1.VirtualMachinePrintableStatus {
	switch {
	case vm.DeletionTimestamp != nil:
		return virtv1.VirtualMachineStatusTerminating
	case instance == nil && !provisioned:
		return virtv1.VirtualMachineStatusProvisioning
	case instance == nil, instance.IsFinal():
		return virtv1.VirtualMachineStatusStopped
	case instance.DeletionTimestamp != nil:
		return virtv1.VirtualMachineStatusStopping
	case isMigrating(instance):
		return virtv1.VirtualMachineStatusMigrating
	case instance.IsRunning():
		return virtv1.VirtualMachineStatusRunning
	case conditionReason(instance, virtv1.VirtualMachineInstanceConditionType(corev1.PodScheduled)) == corev1.PodReasonUnschedulable:
		return virtv1.VirtualMachineStatusUnschedulable
	case conditionReason(instance, virtv1.VirtualMachineInstanceSynchronized) == reasonImagePull:
		return virtv1.VirtualMachineStatusErrImagePull
	default:
		return virtv1.VirtualMachineStatusStarting
	}
}

// Start does what the subresource start of a VirtualMachine does: subresources.kubevirt.io/v1,
// virtualmachines/{name}/start (pkg/virt-api/rest/lifecycle.go).
func (c *Cluster) Start(ctx context.Context, key types.NamespacedName) error {
	return c.requestStateChange(ctx, key, stateChange{start: true})
}

// Stop does what the subresource stop does. See Start.
func (c *Cluster) Stop(ctx context.Context, key types.NamespacedName) error {
	return c.requestStateChange(ctx, key, stateChange{stop: true})
}

// Restart does what the subresource restart does. See Start.
func (c *Cluster) Restart(ctx context.Context, key types.NamespacedName) error {
	return c.requestStateChange(ctx, key, stateChange{stop: true, start: true})
}

// stateChange says what to do with a machine. With both, it is stopped and then started.
type stateChange struct{ stop, start bool }

func (c *Cluster) requestStateChange(ctx context.Context, key types.NamespacedName, change stateChange) error {
	vm, err := get[virtv1.VirtualMachine](ctx, c, key)
	if err != nil {
		return err
	}

	instance, err := get[virtv1.VirtualMachineInstance](ctx, c, key)
	if err != nil {
		return err
	}

	if vm == nil || (change.stop && (instance == nil || instance.IsFinal())) {
		return fmt.Errorf("change %s: %w", key, apierrors.NewConflict(virtv1.Resource("virtualmachines"), key.Name, errNotRunning))
	}

	strategy, err := vm.RunStrategy()
	if err != nil {
		return fmt.Errorf("change %s: %w", key, err)
	}

	if change.start != change.stop {
		if changed := nextRunStrategy(strategy, change.start); changed != strategy {
			vm.Spec.Running, vm.Spec.RunStrategy = nil, &changed
			if err := c.client.Update(ctx, vm); err != nil {
				return fmt.Errorf("change %s: %w", key, err)
			}

			return nil
		}
	}

	var requests []virtv1.VirtualMachineStateChangeRequest
	if change.stop {
		requests = append(requests, virtv1.VirtualMachineStateChangeRequest{Action: virtv1.StopRequest, UID: &instance.UID})
	}

	if change.start {
		requests = append(requests, virtv1.VirtualMachineStateChangeRequest{Action: virtv1.StartRequest})
	}

	vm.Status.StateChangeRequests = requests
	if err := c.client.Status().Update(ctx, vm); err != nil {
		return fmt.Errorf("change %s: %w", key, err)
	}

	return nil
}

// nextRunStrategy returns the run strategy after a start or a stop.
func nextRunStrategy(strategy virtv1.VirtualMachineRunStrategy, start bool) virtv1.VirtualMachineRunStrategy {
	switch {
	case start && strategy == virtv1.RunStrategyHalted:
		return virtv1.RunStrategyAlways
	case !start && strategy == virtv1.RunStrategyAlways:
		return virtv1.RunStrategyHalted
	default:
		return strategy
	}
}
