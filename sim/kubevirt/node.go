// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// overhead is about what KubeVirt adds to a machine's memory for the processes around
	// it.
	overhead = 256 << 20
	maxPods  = 250
)

// makeNodes makes the nodes as Kubernetes and KubeVirt's node labeller would show them.
func (c *Cluster) makeNodes(ctx context.Context) error {
	for _, n := range c.options.Nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{
			corev1.LabelHostname: n.Name, virtv1.NodeSchedulable: "true",
		}}}

		if err := c.client.Create(ctx, node); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("make node %s: %w", n.Name, err)
		}

		amounts := corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewQuantity(n.CPU, resource.DecimalSI),
			corev1.ResourceMemory: n.Memory,
			corev1.ResourcePods:   *resource.NewQuantity(maxPods, resource.DecimalSI),
		}
		node.Status.Capacity, node.Status.Allocatable = amounts, amounts
		node.Status.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
			LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		}}

		if err := c.client.Status().Update(ctx, node); err != nil && !apierrors.IsConflict(err) {
			return fmt.Errorf("make node %s ready: %w", n.Name, err)
		}
	}

	return nil
}

// memoryOf is what an instance takes of its node.
func memoryOf(spec *virtv1.VirtualMachineInstanceSpec) int64 {
	if memory := spec.Domain.Memory; memory != nil && memory.Guest != nil {
		return memory.Guest.Value() + overhead
	}

	if request, ok := spec.Domain.Resources.Requests[corev1.ResourceMemory]; ok {
		return request.Value() + overhead
	}

	return overhead
}

// pick chooses a node for an instance: the one with the most memory free among those
// that its selectors allow. Without one it gives "".
func (c *Cluster) pick(ctx context.Context, instance *virtv1.VirtualMachineInstance, but string) (string, error) {
	used, err := c.used(ctx)
	if err != nil {
		return "", err
	}

	best, most := "", int64(0)

	for _, n := range c.options.Nodes {
		free := n.Memory.Value() - used[n.Name]
		if n.Name == but || c.isLost(n.Name) || !allows(&instance.Spec, n.Name) || free < memoryOf(&instance.Spec) {
			continue
		}

		if free > most {
			best, most = n.Name, free
		}
	}

	return best, nil
}

// used is the memory taken on each node.
func (c *Cluster) used(ctx context.Context) (map[string]int64, error) {
	used := map[string]int64{}

	for _, namespace := range c.options.Namespaces {
		var all virtv1.VirtualMachineInstanceList
		if err := c.client.List(ctx, &all, client.InNamespace(namespace)); err != nil {
			return nil, fmt.Errorf("list instances: %w", err)
		}

		for i := range all.Items {
			if v := &all.Items[i]; !v.IsFinal() && v.Status.NodeName != "" {
				used[v.Status.NodeName] += memoryOf(&v.Spec)
			}
		}
	}

	return used, nil
}

// allows tells whether the instance's selectors allow the node.
func allows(spec *virtv1.VirtualMachineInstanceSpec, node string) bool {
	have := labels.Set{corev1.LabelHostname: node, virtv1.NodeSchedulable: "true"}
	if !labels.SelectorFromSet(spec.NodeSelector).Matches(have) {
		return false
	}

	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil {
		return true
	}

	required := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil {
		return true
	}

	return slices.ContainsFunc(required.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool {
		return matches(term, have)
	})
}

func matches(term corev1.NodeSelectorTerm, have labels.Set) bool {
	for _, e := range term.MatchExpressions {
		in := slices.Contains(e.Values, have[e.Key])

		switch e.Operator {
		case corev1.NodeSelectorOpIn:
			if !in {
				return false
			}
		case corev1.NodeSelectorOpNotIn:
			if in {
				return false
			}
		case corev1.NodeSelectorOpExists:
			if !have.Has(e.Key) {
				return false
			}
		default:
			return false
		}
	}

	return true
}

func (c *Cluster) isLost(node string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.lost[node]
}
