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

// PowerOff ends a machine from inside, as its guest would. A machine that is not there
// is passed over.
func (c *Cluster) PowerOff(ctx context.Context, key types.NamespacedName) error {
	return c.endNow(ctx, key, virtv1.Succeeded)
}

// Crash ends a machine the hard way.
func (c *Cluster) Crash(ctx context.Context, key types.NamespacedName) error {
	return c.endNow(ctx, key, virtv1.Failed)
}

func (c *Cluster) endNow(ctx context.Context, key types.NamespacedName, phase virtv1.VirtualMachineInstancePhase) error {
	instance, err := get[virtv1.VirtualMachineInstance](ctx, c, key)
	if err != nil || instance == nil || !instance.IsRunning() {
		return err
	}

	c.end(key, instance.UID, phase)

	return nil
}

// LoseInstance takes a machine's VirtualMachineInstance away by force, as a person who
// removes its finalizers would.
func (c *Cluster) LoseInstance(ctx context.Context, key types.NamespacedName) error {
	instance, err := get[virtv1.VirtualMachineInstance](ctx, c, key)
	if err != nil || instance == nil {
		return err
	}

	// An instance that is on its way out anyhow may be gone before either call.
	bare := []byte(`{"metadata":{"finalizers":null}}`)

	err = c.client.Patch(ctx, instance, client.RawPatch(types.MergePatchType, bare))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("lose instance %s: %w", key, err)
	}

	err = c.client.Delete(ctx, instance)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("lose instance %s: %w", key, err)
	}

	c.endGuest(instance.UID)

	return nil
}

// LoseNode lets a node die: what ran on it fails, and nothing is put on it any more.
func (c *Cluster) LoseNode(ctx context.Context, node string) error {
	c.mu.Lock()
	c.lost[node] = true
	c.mu.Unlock()

	for _, namespace := range c.options.Namespaces {
		var all virtv1.VirtualMachineInstanceList
		if err := c.client.List(ctx, &all, client.InNamespace(namespace)); err != nil {
			return fmt.Errorf("lose node %s: %w", node, err)
		}

		for i := range all.Items {
			c.queue.Add(client.ObjectKeyFromObject(&all.Items[i]))
		}
	}

	return nil
}
