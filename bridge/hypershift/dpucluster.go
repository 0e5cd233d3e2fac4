// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// PhaseReady is the phase of a DPUCluster that takes DPUs.
const PhaseReady = "Ready"

// TypeKamaji is the type of a DPUCluster whose control plane DPF makes by itself.
const TypeKamaji = "kamaji"

// defaultMaxNodes is what DPUCluster's schema has for maxNodes.
const defaultMaxNodes = 1000

// DPUCluster is what a bridge reads of a DPUCluster.
type DPUCluster struct {
	Type, Phase string
	// Kubeconfig names the Secret, in the DPUCluster's namespace, with the way to its control
	// plane. Once set it can't be changed.
	Kubeconfig string
	// MaxNodes that may join, and Nodes that have.
	MaxNodes, Nodes int64
}

// ReadDPUCluster reads a DPUCluster.
func ReadDPUCluster(object *unstructured.Unstructured) DPUCluster {
	cluster := DPUCluster{
		Type: text(object, "spec", "type"), Phase: text(object, "status", "phase"),
		Kubeconfig: text(object, "spec", "kubeconfig"), MaxNodes: defaultMaxNodes,
	}
	if most, found := number(object, "spec", "maxNodes"); found {
		cluster.MaxNodes = most
	}

	cluster.Nodes, _ = number(object, "status", "nodesCount")

	return cluster
}

// Room is how many more nodes may join; never negative.
func (c DPUCluster) Room() int64 { return max(c.MaxNodes-c.Nodes, 0) }
