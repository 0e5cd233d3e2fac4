// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

func migrationPhases() []virtv1.VirtualMachineInstanceMigrationPhase {
	return []virtv1.VirtualMachineInstanceMigrationPhase{
		virtv1.MigrationPhaseUnset, virtv1.MigrationPending, virtv1.MigrationScheduling, virtv1.MigrationScheduled,
		virtv1.MigrationPreparingTarget, virtv1.MigrationTargetReady, virtv1.MigrationRunning, virtv1.MigrationSucceeded,
	}
}

func isMigrating(instance *virtv1.VirtualMachineInstance) bool {
	state := instance.Status.MigrationState

	return state != nil && !state.Completed && !state.Failed && state.StartTimestamp != nil
}

// reconcileMigrations takes the next step of the instance's oldest live migration. The instance keeps its
// name, UID and addresses, and moves to another node. A second migration at the same time is a violation.
func (c *Cluster) reconcileMigrations(ctx context.Context, instance *virtv1.VirtualMachineInstance) error {
	var all virtv1.VirtualMachineInstanceMigrationList
	if err := c.client.List(ctx, &all, client.InNamespace(instance.Namespace)); err != nil {
		return fmt.Errorf("list migrations: %w", err)
	}

	var active []*virtv1.VirtualMachineInstanceMigration

	for i := range all.Items {
		if m := &all.Items[i]; m.Spec.VMIName == instance.Name && !m.IsFinal() {
			active = append(active, m)
		}
	}

	if len(active) == 0 {
		return nil
	}

	slices.SortFunc(active, func(a, b *virtv1.VirtualMachineInstanceMigration) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})

	if len(active) > 1 {
		c.recordViolation(active[1], "VirtualMachineInstanceMigration",
			"in-flight migration detected: there is one of "+instance.Name+" already")
	}

	return c.advanceMigration(ctx, active[0], instance)
}

func (c *Cluster) advanceMigration(
	ctx context.Context, m *virtv1.VirtualMachineInstanceMigration, instance *virtv1.VirtualMachineInstance,
) error {
	if controllerutil.AddFinalizer(m, virtv1.VirtualMachineInstanceMigrationFinalizer) {
		if err := c.client.Update(ctx, m); err != nil {
			return fmt.Errorf("add finalizer: %w", err)
		}
	}

	phases := migrationPhases()
	index := slices.Index(phases, m.Status.Phase)

	if instance.IsFinal() || instance.DeletionTimestamp != nil || m.DeletionTimestamp != nil {
		return c.setMigrationPhase(ctx, m, virtv1.MigrationFailed)
	}

	if !instance.IsRunning() || index < 0 || index+1 >= len(phases) {
		return nil
	}

	if !c.hasElapsed(client.ObjectKeyFromObject(instance), m.UID, string(m.Status.Phase), c.currentDelays().Migrate) {
		return nil
	}

	next := phases[index+1]
	if err := c.updateForMigration(ctx, m, instance, next); err != nil {
		return err
	}

	if next == virtv1.MigrationScheduled && instance.Status.MigrationState == nil {
		// No other node has capacity, so the target's pod stays unschedulable.
		c.queue.AddAfter(client.ObjectKeyFromObject(instance), retryAfter)

		return nil
	}

	return c.setMigrationPhase(ctx, m, next)
}

// updateForMigration updates the instance for the migration's next phase. In phase Scheduled, it clears the
// instance's MigrationState if no other node has capacity.
func (c *Cluster) updateForMigration(
	ctx context.Context, m *virtv1.VirtualMachineInstanceMigration, instance *virtv1.VirtualMachineInstance,
	next virtv1.VirtualMachineInstanceMigrationPhase,
) error {
	now := metav1.NewTime(c.clock.Now())
	state := instance.Status.MigrationState
	before := instance.DeepCopy()

	switch next {
	case virtv1.MigrationScheduled:
		c.scheduleMu.Lock()
		defer c.scheduleMu.Unlock()

		target, err := c.chooseNode(ctx, instance, instance.Status.NodeName)
		if err != nil || target == "" {
			instance.Status.MigrationState = nil

			return err
		}

		instance.Status.MigrationState = &virtv1.VirtualMachineInstanceMigrationState{
			MigrationUID: m.UID, SourceNode: instance.Status.NodeName, TargetNode: target,
			Mode: virtv1.MigrationPreCopy,
		}
	case virtv1.MigrationRunning:
		if state != nil {
			state.StartTimestamp = &now
		}
	case virtv1.MigrationSucceeded:
		if state != nil {
			state.EndTimestamp, state.Completed = &now, true
			instance.Status.NodeName = state.TargetNode
			instance.Labels[virtv1.NodeNameLabel] = state.TargetNode
		}
	default:
	}

	if reflect.DeepEqual(before, instance) {
		return nil
	}

	if err := c.client.Update(ctx, instance); err != nil {
		return fmt.Errorf("migrate instance: %w", err)
	}

	return nil
}

func (c *Cluster) setMigrationPhase(
	ctx context.Context, m *virtv1.VirtualMachineInstanceMigration, phase virtv1.VirtualMachineInstanceMigrationPhase,
) error {
	m.Status.Phase = phase
	m.Status.PhaseTransitionTimestamps = append(m.Status.PhaseTransitionTimestamps,
		virtv1.VirtualMachineInstanceMigrationPhaseTransitionTimestamp{
			Phase: phase, PhaseTransitionTimestamp: metav1.NewTime(c.clock.Now()),
		})

	if err := c.client.Status().Update(ctx, m); err != nil {
		return fmt.Errorf("update status of migration: %w", err)
	}

	if !m.IsFinal() || !controllerutil.RemoveFinalizer(m, virtv1.VirtualMachineInstanceMigrationFinalizer) {
		return nil
	}

	err := c.client.Update(ctx, m)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove finalizer of migration: %w", err)
	}

	return nil
}
