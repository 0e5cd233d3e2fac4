// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// DPUState is the state that a test gives a DPUCluster.
type DPUState struct {
	// Phase is Pending, Creating, Ready, NotReady or Failed.
	Phase string
	// MaxNodes is spec.maxNodes of a DPUCluster that SetDPUCluster creates. Default: 1000, from the schema.
	MaxNodes int64
	// Nodes is the number of nodes in the cluster (status.nodesCount).
	Nodes int64
}

// DPUClusterKind returns the GroupVersionKind of the DPU operator's DPUCluster.
func DPUClusterKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "provisioning.dpu.nvidia.com", Version: "v1alpha1", Kind: "DPUCluster"}
}

// SetDPUCluster simulates the DPU operator. It creates a DPUCluster of type static if the DPUCluster
// does not exist, and writes its status.
func (s *Sim) SetDPUCluster(ctx context.Context, objectKey types.NamespacedName, state DPUState) error {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(DPUClusterKind())

	err := s.client.Get(ctx, objectKey, object)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get DPUCluster %s: %w", objectKey, err)
	}

	if err != nil {
		object.SetNamespace(objectKey.Namespace)
		object.SetName(objectKey.Name)

		spec := map[string]any{"type": "static"}
		if state.MaxNodes > 0 {
			spec["maxNodes"] = state.MaxNodes
		}

		object.Object["spec"] = spec

		if err := s.client.Create(ctx, object); err != nil {
			return fmt.Errorf("create DPUCluster %s: %w", objectKey, err)
		}
	}

	object.Object["status"] = map[string]any{"phase": state.Phase, "nodesCount": state.Nodes}

	if err := s.client.Status().Update(ctx, object); err != nil {
		return fmt.Errorf("update status of DPUCluster %s: %w", objectKey, err)
	}

	return nil
}

// DPUKind returns the GroupVersionKind of the DPU operator's DPU, which is a worker node.
func DPUKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "provisioning.dpu.nvidia.com", Version: "v1alpha1", Kind: "DPU"}
}

// SetDPU simulates the DPU operator. It sets the phase of a DPU in the namespace of the DPUCluster that
// the DPU joins. It creates the DPU if it does not exist.
func (s *Sim) SetDPU(ctx context.Context, cluster types.NamespacedName, name, phase string) error {
	objectKey := types.NamespacedName{Namespace: cluster.Namespace, Name: name}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(DPUKind())

	err := s.client.Get(ctx, objectKey, object)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get DPU %s: %w", objectKey, err)
	}

	if err != nil {
		object.SetNamespace(objectKey.Namespace)
		object.SetName(objectKey.Name)
		object.Object["spec"] = map[string]any{"cluster": map[string]any{"namespace": cluster.Namespace, "name": cluster.Name}}

		if err := s.client.Create(ctx, object); err != nil {
			return fmt.Errorf("create DPU %s: %w", objectKey, err)
		}
	}

	object.Object["status"] = map[string]any{"phase": phase}

	if err := s.client.Status().Update(ctx, object); err != nil {
		return fmt.Errorf("update status of DPU %s: %w", objectKey, err)
	}

	return nil
}
