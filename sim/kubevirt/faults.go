// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// PowerOff powers a machine off, as its guest would. It does nothing if the machine does not run.
func (c *Cluster) PowerOff(ctx context.Context, key types.NamespacedName) error {
	return c.endInstance(ctx, key, virtv1.Succeeded)
}

// Crash makes a running machine fail. It does nothing if the machine does not run.
func (c *Cluster) Crash(ctx context.Context, key types.NamespacedName) error {
	return c.endInstance(ctx, key, virtv1.Failed)
}

func (c *Cluster) endInstance(ctx context.Context, key types.NamespacedName, phase virtv1.VirtualMachineInstancePhase) error {
	instance, err := get[virtv1.VirtualMachineInstance](ctx, c, key)
	if err != nil || instance == nil || !instance.IsRunning() {
		return err
	}

	c.setEndPhase(key, instance.UID, phase)

	return nil
}

// ForceDeleteInstance deletes a machine's VirtualMachineInstance without its finalizers, as an
// administrator might.
func (c *Cluster) ForceDeleteInstance(ctx context.Context, key types.NamespacedName) error {
	instance, err := get[virtv1.VirtualMachineInstance](ctx, c, key)
	if err != nil || instance == nil {
		return err
	}

	// If the instance is already being deleted, it may disappear before each of the calls.
	finalizerPatch := []byte(`{"metadata":{"finalizers":null}}`)

	err = c.client.Patch(ctx, instance, client.RawPatch(types.MergePatchType, finalizerPatch))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("force deletion of instance %s: %w", key, err)
	}

	err = c.client.Delete(ctx, instance)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("force deletion of instance %s: %w", key, err)
	}

	c.stopGuest(instance.UID)

	return nil
}

// FailNode makes a node fail. All machines on the node fail, and no new machine is scheduled on it.
func (c *Cluster) FailNode(ctx context.Context, node string) error {
	c.mu.Lock()
	c.lostNodes[node] = true
	c.mu.Unlock()

	for _, namespace := range c.options.Namespaces {
		var all virtv1.VirtualMachineInstanceList
		if err := c.client.List(ctx, &all, client.InNamespace(namespace)); err != nil {
			return fmt.Errorf("fail node %s: %w", node, err)
		}

		for i := range all.Items {
			c.queue.Add(client.ObjectKeyFromObject(&all.Items[i]))
		}
	}

	return nil
}
