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

// machine does virt-controller's part for a VirtualMachine.
func (c *Cluster) machine(ctx context.Context, vm *virtv1.VirtualMachine) error {
	instance, err := get[virtv1.VirtualMachineInstance](ctx, c, client.ObjectKeyFromObject(vm))
	if err != nil {
		return err
	}

	if instance != nil && !metav1.IsControlledBy(instance, vm) {
		instance = nil
	}

	if vm.DeletionTimestamp != nil {
		return c.removeMachine(ctx, vm, instance)
	}

	wrong := Validate(vm)
	if err := c.judge(ctx, vm, wrong); err != nil {
		return err
	}

	if len(wrong) > 0 {
		c.violate(vm, "VirtualMachine", strings.Join(wrong, ", "))

		return nil // KubeVirt would not have let it in
	}

	if controllerutil.AddFinalizer(vm, virtv1.VirtualMachineControllerFinalizer) {
		if err := c.client.Update(ctx, vm); err != nil {
			return fmt.Errorf("add finalizer: %w", err)
		}
	}

	ready, err := c.volumes(ctx, vm)
	if err != nil {
		return err
	}

	made := instance

	if strategy, err := vm.RunStrategy(); err == nil && (ready || strategy == virtv1.RunStrategyHalted) {
		if made, err = c.follow(ctx, vm, instance, strategy); err != nil {
			return err
		}
	}

	if err := c.report(ctx, vm, made, ready); err != nil {
		return err
	}

	return c.letGo(ctx, made)
}

// removeMachine removes the instance first, and then lets the VirtualMachine go.
func (c *Cluster) removeMachine(
	ctx context.Context, vm *virtv1.VirtualMachine, instance *virtv1.VirtualMachineInstance,
) error {
	if instance != nil {
		if err := c.stop(ctx, instance); err != nil {
			return err
		}

		if err := c.report(ctx, vm, instance, true); err != nil {
			return err
		}

		return c.letGo(ctx, instance)
	}

	if err := c.dropVolumes(ctx, vm); err != nil {
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

// follow does what the run strategy says, and gives the instance that is there then.
func (c *Cluster) follow(
	ctx context.Context, vm *virtv1.VirtualMachine, instance *virtv1.VirtualMachineInstance,
	strategy virtv1.VirtualMachineRunStrategy,
) (*virtv1.VirtualMachineInstance, error) {
	request := firstRequest(vm)
	stopAsked := request == virtv1.StopRequest && instance != nil
	startAsked := request == virtv1.StartRequest

	switch strategy {
	case virtv1.RunStrategyHalted:
		if instance != nil {
			return instance, c.stop(ctx, instance)
		}

		return nil, nil //nolint:nilnil // nil is none
	case virtv1.RunStrategyAlways:
		switch {
		case instance == nil:
			return c.start(ctx, vm)
		case instance.IsFinal() || stopAsked:
			return instance, c.stop(ctx, instance)
		}
	case virtv1.RunStrategyOnce:
		if instance == nil {
			return c.start(ctx, vm)
		}
	case virtv1.RunStrategyRerunOnFailure:
		return c.rerun(ctx, vm, instance, startAsked, stopAsked)
	case virtv1.RunStrategyManual:
		switch {
		case instance == nil && startAsked:
			return c.start(ctx, vm)
		case stopAsked:
			return instance, c.stop(ctx, instance)
		}
	case virtv1.RunStrategyUnknown, virtv1.RunStrategyWaitAsReceiver:
		// Neither is admitted.
	}

	return instance, nil
}

func (c *Cluster) rerun(
	ctx context.Context, vm *virtv1.VirtualMachine, instance *virtv1.VirtualMachineInstance, startAsked, stopAsked bool,
) (*virtv1.VirtualMachineInstance, error) {
	if instance == nil {
		if !startAsked && vm.Status.RunStrategy == virtv1.RunStrategyRerunOnFailure {
			return nil, nil //nolint:nilnil // nil is none
		}

		return c.start(ctx, vm)
	}

	if instance.DeletionTimestamp != nil || (!stopAsked && !instance.IsFinal()) {
		return instance, nil
	}

	if instance.Status.Phase == virtv1.Failed && !startAsked {
		vm.Status.StateChangeRequests = append(vm.Status.StateChangeRequests,
			virtv1.VirtualMachineStateChangeRequest{Action: virtv1.StartRequest})

		if err := c.client.Status().Update(ctx, vm); err != nil {
			return instance, fmt.Errorf("ask for another start: %w", err)
		}
	}

	return instance, c.stop(ctx, instance)
}

func firstRequest(vm *virtv1.VirtualMachine) virtv1.StateChangeRequestAction {
	if len(vm.Status.StateChangeRequests) == 0 {
		return ""
	}

	return vm.Status.StateChangeRequests[0].Action
}

// start makes the machine's instance.
func (c *Cluster) start(ctx context.Context, vm *virtv1.VirtualMachine) (*virtv1.VirtualMachineInstance, error) {
	if wrong := ValidateInstance(vm); len(wrong) > 0 {
		c.violate(vm, "VirtualMachine", strings.Join(wrong, ", "))

		return nil, nil //nolint:nilnil // nil is none
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
		return nil, fmt.Errorf("start machine: another's instance has its name: %w", err)
	}

	if err != nil {
		return nil, fmt.Errorf("start machine: %w", err)
	}

	c.mu.Lock()
	c.starts[vm.UID]++
	c.mu.Unlock()

	return instance, nil
}

// setDefaultNetwork gives a machine that says nothing of networks the pod's.
func setDefaultNetwork(spec *virtv1.VirtualMachineInstanceSpec) {
	attach := spec.Domain.Devices.AutoattachPodInterface
	if len(spec.Networks) > 0 || len(spec.Domain.Devices.Interfaces) > 0 || (attach != nil && !*attach) {
		return
	}

	spec.Networks = []virtv1.Network{*virtv1.DefaultPodNetwork()}
	spec.Domain.Devices.Interfaces = []virtv1.Interface{*virtv1.DefaultMasqueradeNetworkInterface()}
}

// stop deletes the machine's instance.
func (c *Cluster) stop(ctx context.Context, instance *virtv1.VirtualMachineInstance) error {
	if instance.DeletionTimestamp != nil {
		return nil
	}

	err := c.client.Delete(ctx, instance)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("stop machine: %w", err)
	}

	// The object goes on with what the deletion has made of it.
	err = c.client.Get(ctx, client.ObjectKeyFromObject(instance), instance)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("stop machine: %w", err)
	}

	return nil
}

// letGo takes virt-controller's finalizer off an instance that has ended, once its end
// is in the VirtualMachine's status.
func (c *Cluster) letGo(ctx context.Context, instance *virtv1.VirtualMachineInstance) error {
	if instance == nil || !instance.IsFinal() {
		return nil
	}

	if !controllerutil.RemoveFinalizer(instance, virtv1.VirtualMachineControllerFinalizer) {
		return nil
	}

	err := c.client.Update(ctx, instance)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("let instance go: %w", err)
	}

	return nil
}

// report writes the VirtualMachine's status.
func (c *Cluster) report(
	ctx context.Context, vm *virtv1.VirtualMachine, instance *virtv1.VirtualMachineInstance, provisioned bool,
) error {
	before := vm.Status.DeepCopy()
	status := &vm.Status
	status.Created = instance != nil
	status.Ready = instance != nil && isTrue(instance, virtv1.VirtualMachineInstanceReady)
	status.DesiredGeneration = vm.Generation

	if strategy, err := vm.RunStrategy(); err == nil && (status.RunStrategy != "" || status.Created) {
		status.RunStrategy = strategy
	}

	// A request is done when what it asked for has come about.
	switch firstRequest(vm) {
	case virtv1.StartRequest:
		if instance != nil && instance.DeletionTimestamp == nil {
			status.StateChangeRequests = status.StateChangeRequests[1:]
		}
	case virtv1.StopRequest:
		if asked := status.StateChangeRequests[0].UID; instance == nil || (asked != nil && *asked != instance.UID) {
			status.StateChangeRequests = status.StateChangeRequests[1:]
		}
	}

	status.PrintableStatus = printable(vm, instance, provisioned)
	c.machineReady(vm, instance)

	if reflect.DeepEqual(before, status) {
		return nil
	}

	if err := c.client.Status().Update(ctx, vm); err != nil {
		return fmt.Errorf("report machine: %w", err)
	}

	return nil
}

func (c *Cluster) machineReady(vm *virtv1.VirtualMachine, instance *virtv1.VirtualMachineInstance) {
	want := virtv1.VirtualMachineCondition{
		Type: virtv1.VirtualMachineReady, Status: corev1.ConditionFalse, Reason: "VMINotExists", Message: "VMI does not exist",
	}

	switch {
	case instance == nil:
	case vm.Status.Ready:
		want = virtv1.VirtualMachineCondition{Type: virtv1.VirtualMachineReady, Status: corev1.ConditionTrue}
	default:
		want.Reason, want.Message = "GuestNotRunning", "Guest VM is not reported as running"
	}

	want.LastTransitionTime = metav1.NewTime(c.clock.Now())

	for i, old := range vm.Status.Conditions {
		if old.Type != want.Type {
			continue
		}

		if old.Status != want.Status || old.Reason != want.Reason {
			vm.Status.Conditions[i] = want
		}

		return
	}

	vm.Status.Conditions = append(vm.Status.Conditions, want)
}

// printable is the status in words; the first that fits counts.
func printable(
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
	case reasonOf(instance, virtv1.VirtualMachineInstanceConditionType(corev1.PodScheduled)) == corev1.PodReasonUnschedulable:
		return virtv1.VirtualMachineStatusUnschedulable
	case reasonOf(instance, virtv1.VirtualMachineInstanceSynchronized) == reasonImagePull:
		return virtv1.VirtualMachineStatusErrImagePull
	default:
		return virtv1.VirtualMachineStatusStarting
	}
}

// Start does what the subresource does: subresources.kubevirt.io/v1,
// virtualmachines/{name}/start (pkg/virt-api/rest/lifecycle.go).
func (c *Cluster) Start(ctx context.Context, key types.NamespacedName) error {
	return c.request(ctx, key, true, false)
}

// Stop is the subresource stop; see Start.
func (c *Cluster) Stop(ctx context.Context, key types.NamespacedName) error {
	return c.request(ctx, key, false, true)
}

// Restart is the subresource restart; see Start.
func (c *Cluster) Restart(ctx context.Context, key types.NamespacedName) error {
	return c.request(ctx, key, true, true)
}

func (c *Cluster) request(ctx context.Context, key types.NamespacedName, start, stop bool) error {
	vm, err := get[virtv1.VirtualMachine](ctx, c, key)
	if err != nil {
		return err
	}

	instance, err := get[virtv1.VirtualMachineInstance](ctx, c, key)
	if err != nil {
		return err
	}

	if vm == nil || (stop && (instance == nil || instance.IsFinal())) {
		return fmt.Errorf("change %s: %w", key, apierrors.NewConflict(virtv1.Resource("virtualmachines"), key.Name, errNotRunning))
	}

	strategy, err := vm.RunStrategy()
	if err != nil {
		return fmt.Errorf("change %s: %w", key, err)
	}

	if start != stop {
		if changed := requested(strategy, start); changed != strategy {
			vm.Spec.Running, vm.Spec.RunStrategy = nil, &changed
			if err := c.client.Update(ctx, vm); err != nil {
				return fmt.Errorf("change %s: %w", key, err)
			}

			return nil
		}
	}

	var requests []virtv1.VirtualMachineStateChangeRequest
	if stop {
		requests = append(requests, virtv1.VirtualMachineStateChangeRequest{Action: virtv1.StopRequest, UID: &instance.UID})
	}

	if start {
		requests = append(requests, virtv1.VirtualMachineStateChangeRequest{Action: virtv1.StartRequest})
	}

	vm.Status.StateChangeRequests = requests
	if err := c.client.Status().Update(ctx, vm); err != nil {
		return fmt.Errorf("change %s: %w", key, err)
	}

	return nil
}

// requested is the run strategy that a start or a stop leads to.
func requested(strategy virtv1.VirtualMachineRunStrategy, start bool) virtv1.VirtualMachineRunStrategy {
	switch {
	case start && strategy == virtv1.RunStrategyHalted:
		return virtv1.RunStrategyAlways
	case !start && strategy == virtv1.RunStrategyAlways:
		return virtv1.RunStrategyHalted
	default:
		return strategy
	}
}
