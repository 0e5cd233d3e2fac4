// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
)

const kindNodePool = "KubevirtNodePool"

const (
	// maxChangesPerReconcile is the maximum number of machines that one reconcile creates or deletes, and
	// maxConcurrentChanges the maximum number at the same time.
	maxChangesPerReconcile = 100
	maxConcurrentChanges   = 8
	// continueDelay is the delay before the next reconcile creates or deletes more machines.
	continueDelay = 50 * time.Millisecond
	// unknownRetry is the delay before a pool is reconciled again while the state of a machine is unknown.
	unknownRetry = 2 * time.Second
	// machinesRetry is the delay before a pool is reconciled again after an error, and while its machines
	// are being deleted.
	machinesRetry = time.Minute
)

// scaleMachines creates missing machines, deletes surplus machines, and deletes unused templates.
func scaleMachines(ctx context.Context, s *scope) step.Result {
	allMachines, err := s.listMachines(ctx, s.Client)
	if err != nil {
		return step.Fail(err)
	}

	if err := s.takeOverMachines(ctx, allMachines); err != nil {
		return step.Fail(err)
	}

	change := planChange(allMachines, s.spec, int(s.pool.Spec.Replicas))
	if !change.isEmpty() {
		// The cache may not have new machines yet, so list the machines from the API server before a change.
		if allMachines, err = s.listMachines(ctx, s.APIReader); err != nil {
			return step.Fail(err)
		}

		if err := s.takeOverMachines(ctx, allMachines); err != nil {
			return step.Fail(err)
		}

		if unknown, err := s.findUnknown(ctx, allMachines); err != nil {
			return step.Fail(err)
		} else if unknown != "" {
			return s.updateCounts(allMachines, step.Wait(unknownRetry, "MachineUnknown", fmt.Sprintf(
				"machine %s has a VirtualMachine and no status: waiting until its status is read back", unknown)))
		}

		change = planChange(allMachines, s.spec, int(s.pool.Spec.Replicas))
	}

	if err := s.applyChange(ctx, change); err != nil {
		return s.updateCounts(allMachines, step.FromError(err, machinesRetry))
	}

	if err := s.deleteUnusedTemplates(ctx, allMachines); err != nil {
		return step.Fail(err)
	}

	if !change.isEmpty() {
		return s.updateCounts(allMachines, step.Wait(continueDelay, "Scaling", change.String()))
	}

	return s.updateCounts(allMachines, step.Done())
}

// findUnknown returns the name of a machine that was restored without its status and that has a VirtualMachine,
// or an empty name if there is none. Such a machine looks like one that was never used, so no machine may be
// deleted before its status is read back.
func (s *scope) findUnknown(ctx context.Context, machines []v1alpha1.KubevirtMachine) (string, error) {
	for i := range machines {
		m := &machines[i]
		if len(m.Status.Conditions) > 0 || m.DeletionTimestamp != nil {
			continue
		}

		err := s.Client.Get(ctx, client.ObjectKeyFromObject(m), kubevirt.NewObject(kubevirt.VirtualMachineKind()))
		if err == nil {
			return m.Name, nil
		}

		if !apierrors.IsNotFound(err) {
			return "", fmt.Errorf("get virtual machine %s: %w", m.Name, err)
		}
	}

	return "", nil
}

// machineChange is the number of machines to create for a pool, and the machines to delete.
type machineChange struct {
	create int
	delete []v1alpha1.KubevirtMachine
}

// isEmpty returns whether there is nothing to create or delete.
func (c machineChange) isEmpty() bool { return c.create == 0 && len(c.delete) == 0 }

// String returns the message for the condition.
func (c machineChange) String() string {
	return fmt.Sprintf("creating %s, deleting %d", english.Plural(c.create, "machine", ""), len(c.delete))
}

func excludeDeleting(machines []v1alpha1.KubevirtMachine) []v1alpha1.KubevirtMachine {
	out := make([]v1alpha1.KubevirtMachine, 0, len(machines))

	for i := range machines {
		if machines[i].DeletionTimestamp == nil {
			out = append(out, machines[i])
		}
	}

	return out
}

// planChange returns the change that brings the existing machines to the spec and the number of replicas.
func planChange(machines []v1alpha1.KubevirtMachine, spec v1alpha1.KubevirtMachineSpec, replicas int) machineChange {
	var (
		out  machineChange
		kept []v1alpha1.KubevirtMachine
	)

	for _, m := range excludeDeleting(machines) {
		if isOutdated(&m, spec) {
			out.delete = append(out.delete, m)
		} else {
			kept = append(kept, m)
		}
	}

	if surplus := len(kept) - replicas; surplus > 0 {
		slices.SortStableFunc(kept, compareDeletionOrder)
		out.delete = append(out.delete, kept[:surplus]...)
	}

	out.create = max(0, replicas-len(kept))

	return out
}

// isOutdated returns whether the network configuration of a machine differs from the one in spec. It returns false
// for a machine that has addresses or a VirtualMachine. Different subnets do not make a machine outdated, because
// its addresses will come from the current pool.
func isOutdated(m *v1alpha1.KubevirtMachine, spec v1alpha1.KubevirtMachineSpec) bool {
	current, desired := m.Spec.BootstrapNetworkConfig, spec.BootstrapNetworkConfig
	if current == nil || len(m.Status.AllocatedBootstrapAddresses) > 0 || hasVirtualMachine(m) {
		return false
	}

	if desired == nil || current.NetworkName != desired.NetworkName {
		return true
	}

	return current.NetworkData != nil && desired.NetworkData != nil && *current.NetworkData != *desired.NetworkData
}

// compareDeletionOrder compares machines for sorting. Machines with the least progress are deleted first,
// and then the newest machines, because they probably run the fewest workloads.
func compareDeletionOrder(x, y v1alpha1.KubevirtMachine) int {
	return cmp.Or(
		cmp.Compare(progressOf(&x), progressOf(&y)),
		y.CreationTimestamp.Compare(x.CreationTimestamp.Time),
		strings.Compare(x.Name, y.Name),
	)
}

// hasVirtualMachine returns whether the operator has created the VirtualMachine of a machine.
func hasVirtualMachine(m *v1alpha1.KubevirtMachine) bool { return progressOf(m) > 0 }

// progressOf returns the progress of a machine: 0 without a VirtualMachine, 1 with one, and 2 if it is ready.
func progressOf(m *v1alpha1.KubevirtMachine) int {
	switch {
	case m.Status.Ready:
		return 2
	case m.Status.Phase == "" || m.Status.Phase == v1alpha1.KubevirtMachinePending:
		return 0
	default:
		return 1
	}
}

// listMachines returns the machines that the pool owns.
func (s *scope) listMachines(ctx context.Context, from client.Reader) ([]v1alpha1.KubevirtMachine, error) {
	var machines v1alpha1.KubevirtMachineList

	err := from.List(ctx, &machines, client.InNamespace(s.pool.Namespace),
		client.MatchingLabels{v1alpha1.LabelNodePool: s.pool.Name})
	if err != nil {
		return nil, fmt.Errorf("list machines: %w", err)
	}

	return slices.DeleteFunc(machines.Items, func(m v1alpha1.KubevirtMachine) bool {
		return !metav1.IsControlledBy(&m, s.pool) && !s.isRestored(&m)
	}), nil
}

// isRestored returns whether a machine belongs to an earlier object with the pool's name. This is the case
// after the objects were restored from a backup. A machine that a person has created has no template.
func (s *scope) isRestored(m *v1alpha1.KubevirtMachine) bool {
	return !metav1.IsControlledBy(m, s.pool) && m.Annotations[v1alpha1.AnnotationMachineTemplate] != "" &&
		kubevirt.HasNoOrEarlierOwner(m, s.pool, kindNodePool)
}

// takeOverMachines makes the pool the owner of the machines that an earlier object with its name had. Without
// an owner, they would be deleted.
func (s *scope) takeOverMachines(ctx context.Context, machines []v1alpha1.KubevirtMachine) error {
	for i := range machines {
		m := &machines[i]
		if !s.isRestored(m) || m.DeletionTimestamp != nil {
			continue
		}

		before := m.DeepCopy()
		kubevirt.TakeOver(m, s.pool, kindNodePool)

		patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
		if err := s.Client.Patch(ctx, m, patch); err != nil {
			return fmt.Errorf("take over machine %s: %w", m.Name, err)
		}
	}

	return nil
}

// updateCounts writes the numbers of machines into the status. It returns the result with the condition
// IPPoolExhausted.
func (s *scope) updateCounts(allMachines []v1alpha1.KubevirtMachine, result step.Result) step.Result {
	machines := excludeDeleting(allMachines)
	ready, draining := 0, 0

	for i := range allMachines {
		if allMachines[i].Status.Phase == v1alpha1.KubevirtMachineDraining {
			draining++
		}
	}

	for i := range machines {
		if machines[i].Status.Ready {
			ready++
		}
	}

	status := &s.pool.Status
	status.Replicas, status.ReadyReplicas = int32(len(machines)), int32(ready) //nolint:gosec // G115: at most 10000
	status.DrainingReplicas = int32(draining)
	status.Selector = labels.Set{v1alpha1.LabelNodePool: s.pool.Name}.String()

	return s.reportExhaustion(result)
}

// applyChange deletes and creates machines, at most maxChangesPerReconcile.
func (s *scope) applyChange(ctx context.Context, c machineChange) error {
	var group errgroup.Group

	group.SetLimit(maxConcurrentChanges)

	errs := make([]error, maxChangesPerReconcile) // a place for each goroutine
	started := 0

	for i := range c.delete[:min(len(c.delete), maxChangesPerReconcile)] {
		group.Go(func() error {
			errs[i] = s.deleteMachine(ctx, &c.delete[i])

			return nil
		})

		started++
	}

	for i := started; i < min(started+c.create, maxChangesPerReconcile); i++ {
		group.Go(func() error {
			errs[i] = s.createMachine(ctx)

			return nil
		})
	}

	_ = group.Wait() // the errors are in errs

	return classifyForbidden(errors.Join(errs...))
}

// classifyForbidden gives a Forbidden error, such as an exceeded quota, the class Resource and a reason. A
// person has to fix such an error.
func classifyForbidden(err error) error {
	if apierrors.IsForbidden(err) {
		return errclass.Wrap(errclass.Resource, errclass.ReasonOf(err, "Forbidden"), err)
	}

	return err
}

// createMachine creates a machine with the current template.
func (s *scope) createMachine(ctx context.Context) error {
	meta := s.newObjectMeta("")
	meta.GenerateName = s.pool.Name + "-"
	meta.Annotations = map[string]string{v1alpha1.AnnotationMachineTemplate: s.templateName}
	// The machine has the finalizer from its creation, so no machine gets addresses without it.
	meta.Finalizers = []string{v1alpha1.FinalizerKubevirtMachine}

	machine := &v1alpha1.KubevirtMachine{ObjectMeta: meta, Spec: s.spec}
	if err := s.Client.Create(ctx, machine); err != nil {
		return fmt.Errorf("create machine: %w", err)
	}

	return nil
}

// deleteMachine deletes a machine, but not a new machine with the same name.
func (s *scope) deleteMachine(ctx context.Context, m *v1alpha1.KubevirtMachine) error {
	uid := m.UID

	err := s.Client.Delete(ctx, m, client.Preconditions{UID: &uid})
	if apierrors.IsNotFound(err) {
		return nil // others have deleted it, so it gets no event
	}

	if err != nil {
		return fmt.Errorf("delete machine %s: %w", m.Name, err)
	}

	s.Recorder.Eventf(s.pool, m, corev1.EventTypeNormal, "MachineDeleted", "Scale", "%s", m.Name)

	return nil
}

// waitForMachines waits until as many machines are ready as spec.replicas says.
func waitForMachines(_ context.Context, s *scope) step.Result {
	status := s.pool.Status
	if status.ReadyReplicas < s.pool.Spec.Replicas {
		return s.reportExhaustion(step.Wait(0, "MachinesNotReady", fmt.Sprintf("%d of %d machines are ready",
			status.ReadyReplicas, s.pool.Spec.Replicas)))
	}

	return s.reportExhaustion(step.Done())
}

// deleteMachines deletes the pool's machines, and waits until they no longer exist.
func deleteMachines(ctx context.Context, s *scope) step.Result {
	allMachines, err := s.listMachines(ctx, s.APIReader)
	if err != nil {
		return step.Fail(err)
	}

	if len(allMachines) > 0 {
		if err := s.applyChange(ctx, machineChange{delete: excludeDeleting(allMachines)}); err != nil {
			return step.Fail(err)
		}

		after := machinesRetry
		if len(excludeDeleting(allMachines)) > maxChangesPerReconcile {
			after = continueDelay
		}

		message := "being deleted: " + english.Plural(len(allMachines), "machine", "")

		return s.updateCounts(allMachines, step.Wait(after, "MachinesLeft", message))
	}

	return s.updateCounts(nil, step.Done())
}
