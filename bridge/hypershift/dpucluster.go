// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// PhaseReady is the phase of a DPUCluster that DPUs can join.
const PhaseReady = "Ready"

// TypeKamaji is the type of a DPUCluster for which DPF creates the control plane with Kamaji.
const TypeKamaji = "kamaji"

// defaultMaxNodes is the default of maxNodes in DPUCluster's schema.
const defaultMaxNodes = 1000

// DPUCluster holds the fields of a DPUCluster that a bridge needs.
type DPUCluster struct {
	Type, Phase string
	// Kubeconfig is the name of the Secret with the kubeconfig of the control plane, in the DPUCluster's
	// namespace. Once set, it cannot be changed.
	Kubeconfig string
	// MaxNodes is how many nodes may join, and Nodes is how many have joined.
	MaxNodes, Nodes int64
}

// DecodeDPUCluster decodes a DPUCluster. If maxNodes is not set, MaxNodes is the default of the schema.
func DecodeDPUCluster(object *unstructured.Unstructured) DPUCluster {
	cluster := DPUCluster{
		Type: stringField(object, "spec", "type"), Phase: stringField(object, "status", "phase"),
		Kubeconfig: stringField(object, "spec", "kubeconfig"), MaxNodes: defaultMaxNodes,
	}
	if maxNodes, found := intField(object, "spec", "maxNodes"); found {
		cluster.MaxNodes = maxNodes
	}

	cluster.Nodes, _ = intField(object, "status", "nodesCount")

	return cluster
}

// FreeNodes returns how many more nodes may join. It is never negative.
func (c DPUCluster) FreeNodes() int64 { return max(c.MaxNodes-c.Nodes, 0) }
