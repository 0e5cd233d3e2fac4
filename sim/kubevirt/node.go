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
	// overhead is approximately the memory that KubeVirt adds for the processes of a machine's pod.
	overhead = 256 << 20
	maxPods  = 250
)

// createNodes creates the nodes with the labels and the status that kubelet and KubeVirt's node labeller
// set.
func (c *Cluster) createNodes(ctx context.Context) error {
	for _, n := range c.options.Nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{
			corev1.LabelHostname: n.Name, virtv1.NodeSchedulable: "true",
		}}}

		if err := c.client.Create(ctx, node); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create node %s: %w", n.Name, err)
		}

		amounts := corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewQuantity(n.CPU, resource.DecimalSI),
			corev1.ResourceMemory: n.Memory,
			corev1.ResourcePods:   *resource.NewQuantity(maxPods, resource.DecimalSI),
		}
		for name, count := range n.Devices {
			amounts[name] = *resource.NewQuantity(count, resource.DecimalSI)
		}

		node.Status.Capacity, node.Status.Allocatable = amounts, amounts
		node.Status.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
			LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		}}

		if err := c.client.Status().Update(ctx, node); err != nil && !apierrors.IsConflict(err) {
			return fmt.Errorf("update status of node %s: %w", n.Name, err)
		}
	}

	return nil
}

// memoryDemand returns the memory in bytes that an instance uses on its node.
func memoryDemand(spec *virtv1.VirtualMachineInstanceSpec) int64 {
	if memory := spec.Domain.Memory; memory != nil && memory.Guest != nil {
		return memory.Guest.Value() + overhead
	}

	if request, ok := spec.Domain.Resources.Requests[corev1.ResourceMemory]; ok {
		return request.Value() + overhead
	}

	return overhead
}

// chooseNode returns the allowed node with the most free memory, "" if no node has enough. It leaves out
// the node except, which is the source of a migration.
func (c *Cluster) chooseNode(ctx context.Context, instance *virtv1.VirtualMachineInstance, except string) (string, error) {
	used, usedDevices, err := c.sumUsage(ctx)
	if err != nil {
		return "", err
	}

	best, mostFree := "", int64(0)
	needed := deviceDemand(&instance.Spec)

	for _, n := range c.options.Nodes {
		free := n.Memory.Value() - used[n.Name]
		if n.Name == except || c.isLost(n.Name) || !isNodeAllowed(&instance.Spec, n.Name) || free < memoryDemand(&instance.Spec) {
			continue
		}

		lacksDevice := false
		for name, count := range needed {
			lacksDevice = lacksDevice || n.Devices[name]-usedDevices[n.Name][name] < count
		}

		if !lacksDevice && free > mostFree {
			best, mostFree = n.Name, free
		}
	}

	return best, nil
}

// deviceDemand returns the devices that an instance uses on its node.
func deviceDemand(spec *virtv1.VirtualMachineInstanceSpec) map[corev1.ResourceName]int64 {
	out := map[corev1.ResourceName]int64{}
	for _, d := range spec.Domain.Devices.GPUs {
		out[corev1.ResourceName(d.DeviceName)]++
	}

	for _, d := range spec.Domain.Devices.HostDevices {
		out[corev1.ResourceName(d.DeviceName)]++
	}

	return out
}

// sumUsage returns the used memory in bytes and the used devices of each node.
func (c *Cluster) sumUsage(
	ctx context.Context,
) (memory map[string]int64, devices map[string]map[corev1.ResourceName]int64, err error) {
	used, devices := map[string]int64{}, map[string]map[corev1.ResourceName]int64{}

	for _, namespace := range c.options.Namespaces {
		var all virtv1.VirtualMachineInstanceList
		if err := c.client.List(ctx, &all, client.InNamespace(namespace)); err != nil {
			return nil, nil, fmt.Errorf("list instances: %w", err)
		}

		for i := range all.Items {
			v := &all.Items[i]
			if v.IsFinal() || v.Status.NodeName == "" {
				continue
			}

			used[v.Status.NodeName] += memoryDemand(&v.Spec)
			if devices[v.Status.NodeName] == nil {
				devices[v.Status.NodeName] = map[corev1.ResourceName]int64{}
			}

			for name, count := range deviceDemand(&v.Spec) {
				devices[v.Status.NodeName][name] += count
			}
		}
	}

	return used, devices, nil
}

// isNodeAllowed returns true if the instance's node selector and node affinity match the node.
func isNodeAllowed(spec *virtv1.VirtualMachineInstanceSpec, node string) bool {
	nodeLabels := labels.Set{corev1.LabelHostname: node, virtv1.NodeSchedulable: "true"}
	if !labels.SelectorFromSet(spec.NodeSelector).Matches(nodeLabels) {
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
		return matchesTerm(term, nodeLabels)
	})
}

func matchesTerm(term corev1.NodeSelectorTerm, nodeLabels labels.Set) bool {
	for _, e := range term.MatchExpressions {
		in := slices.Contains(e.Values, nodeLabels[e.Key])

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
			if !nodeLabels.Has(e.Key) {
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

	return c.lostNodes[node]
}
