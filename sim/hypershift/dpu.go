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

// DPUState is what a test says of a DPUCluster.
type DPUState struct {
	// Phase is Pending, Creating, Ready, NotReady or Failed.
	Phase string
	// MaxNodes of the spec, when it is made. Default: the schema's, 1000.
	MaxNodes int64
	// Nodes that it has.
	Nodes int64
}

// DPUClusterKind is that of the DPU operator.
func DPUClusterKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "provisioning.dpu.nvidia.com", Version: "v1alpha1", Kind: "DPUCluster"}
}

// SetDPUCluster plays the DPU operator: it makes a DPUCluster of type static where it is
// not there, and writes its status.
func (s *Sim) SetDPUCluster(ctx context.Context, at types.NamespacedName, state DPUState) error {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(DPUClusterKind())

	err := s.client.Get(ctx, at, object)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get DPUCluster %s: %w", at, err)
	}

	if err != nil {
		object.SetNamespace(at.Namespace)
		object.SetName(at.Name)

		spec := map[string]any{"type": "static"}
		if state.MaxNodes > 0 {
			spec["maxNodes"] = state.MaxNodes
		}

		object.Object["spec"] = spec

		if err := s.client.Create(ctx, object); err != nil {
			return fmt.Errorf("make DPUCluster %s: %w", at, err)
		}
	}

	object.Object["status"] = map[string]any{"phase": state.Phase, "nodesCount": state.Nodes}

	if err := s.client.Status().Update(ctx, object); err != nil {
		return fmt.Errorf("write status of DPUCluster %s: %w", at, err)
	}

	return nil
}

// DPUKind is a worker of the DPU operator's.
func DPUKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "provisioning.dpu.nvidia.com", Version: "v1alpha1", Kind: "DPU"}
}

// SetDPU plays the DPU operator: a DPU in the namespace of the DPUCluster that it joins is in
// a phase. It is made where it is not there.
func (s *Sim) SetDPU(ctx context.Context, cluster types.NamespacedName, name, phase string) error {
	at := types.NamespacedName{Namespace: cluster.Namespace, Name: name}
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(DPUKind())

	err := s.client.Get(ctx, at, object)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get DPU %s: %w", at, err)
	}

	if err != nil {
		object.SetNamespace(at.Namespace)
		object.SetName(at.Name)
		object.Object["spec"] = map[string]any{"cluster": map[string]any{"namespace": cluster.Namespace, "name": cluster.Name}}

		if err := s.client.Create(ctx, object); err != nil {
			return fmt.Errorf("make DPU %s: %w", at, err)
		}
	}

	object.Object["status"] = map[string]any{"phase": phase}

	if err := s.client.Status().Update(ctx, object); err != nil {
		return fmt.Errorf("write status of DPU %s: %w", at, err)
	}

	return nil
}
