// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// launcherLabel is the value of the label kubevirt.io of the pods that instances run in.
const launcherLabel = "virt-launcher"

// Capacity returns the resources of the usable nodes; see hypervisor.Provider. As for Kubernetes'
// scheduler, the free resources are the allocatable resources without the requests of pods and the
// memory of machines. If the credentials do not permit listing nodes, the capacity is empty except for
// the number of machines. If they do not permit listing all pods, the free resources are too high.
// Capacity does not include disks, because a storage class does not report its capacity.
func (p *Provider) Capacity(ctx context.Context) (hypervisor.Capacity, error) {
	machines, err := p.countMachines(ctx)
	if err != nil {
		return hypervisor.Capacity{}, err
	}

	nodes, mayList, err := p.listNodes(ctx)
	if err != nil || !mayList {
		return hypervisor.Capacity{Machines: machines}, err
	}

	out := hypervisor.Capacity{Nodes: nodes, Machines: machines}

	usageByNode, err := p.listUsage(ctx)
	if err != nil {
		return hypervisor.Capacity{}, err
	}

	for i := range out.Nodes {
		node := &out.Nodes[i]
		nodeUsage := usageByNode[node.Name]
		node.Free.CPU = max(node.Total.CPU-milliToCores(nodeUsage.milli), 0)
		node.Free.Memory = max(node.Total.Memory-nodeUsage.memory, 0)

		out.Total.CPU += node.Total.CPU
		out.Total.Memory += node.Total.Memory

		if node.Online {
			out.Free.CPU += node.Free.CPU
			out.Free.Memory += node.Free.Memory
		}
	}

	return out, nil
}

// countMachines returns the number of this operator's machines.
func (p *Provider) countMachines(ctx context.Context) (int, error) {
	ctx, cancel := p.withCallTimeout(ctx)
	defer cancel()

	var all virtv1.VirtualMachineList
	if err := p.api.List(ctx, &all, client.InNamespace(p.config.Namespace), p.identity.selector()); err != nil {
		return 0, wrapAPIError("count machines", readCall, err)
	}

	owned := 0

	for i := range all.Items {
		if _, isOurs := p.identity.ownedRecord(&all.Items[i]); isOurs {
			owned++
		}
	}

	return owned, nil
}

// listNodes returns the usable nodes with their total resources. mayList is false if the
// credentials do not permit listing nodes.
func (p *Provider) listNodes(ctx context.Context) (usable []hypervisor.Node, mayList bool, err error) {
	nodes, mayList, err := p.listNodeObjects(ctx)

	var out []hypervisor.Node

	for i := range nodes {
		node := &nodes[i]
		total := hypervisor.Resources{
			CPU: node.Status.Allocatable.Cpu().Value(), Memory: node.Status.Allocatable.Memory().Value(),
		}

		out = append(out, hypervisor.Node{Name: node.Name, Online: isOnline(node), Total: total, Free: total})
	}

	slices.SortFunc(out, func(a, b hypervisor.Node) int { return strings.Compare(a.Name, b.Name) })

	return out, mayList, err
}

// listNodeObjects returns the usable nodes. mayList is false if the credentials do not permit listing them.
func (p *Provider) listNodeObjects(ctx context.Context) (nodes []corev1.Node, mayList bool, err error) {
	ctx, cancel := p.withCallTimeout(ctx)
	defer cancel()

	var all corev1.NodeList

	err = p.api.List(ctx, &all, client.MatchingLabels{virtv1.NodeSchedulable: "true"})
	if apierrors.IsForbidden(err) {
		return nil, false, nil
	}

	if err != nil {
		return nil, false, wrapAPIError("list nodes", readCall, err)
	}

	return slices.DeleteFunc(all.Items, func(node corev1.Node) bool { return !p.isUsable(&node) }), true, nil
}

func (p *Provider) isUsable(node *corev1.Node) bool {
	if len(p.config.Nodes) > 0 && !slices.Contains(p.config.Nodes, node.Labels[corev1.LabelHostname]) {
		return false
	}

	return labels.SelectorFromSet(p.config.NodeSelector).Matches(labels.Set(node.Labels))
}

func isOnline(node *corev1.Node) bool {
	return !node.Spec.Unschedulable && slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// resourceUsage is the used resources of a node: CPU in thousandths of a core, and memory in bytes.
type resourceUsage struct{ milli, memory int64 }

const milliPerCore = 1000

func milliToCores(milli int64) int64 { return (milli + milliPerCore - 1) / milliPerCore }

// listUsage returns the used resources of each node by name. It counts instances, and pods other than
// the ones that instances run in, as far as the credentials permit listing them.
func (p *Provider) listUsage(ctx context.Context) (map[string]resourceUsage, error) {
	ctx, cancel := p.withCallTimeout(ctx)
	defer cancel()

	usageByNode := map[string]resourceUsage{}

	var instances virtv1.VirtualMachineInstanceList
	if err := p.listVisible(ctx, &instances); err != nil {
		return nil, err
	}

	for i := range instances.Items {
		v := &instances.Items[i]
		if v.IsFinal() || v.Status.NodeName == "" {
			continue
		}

		nodeUsage := usageByNode[v.Status.NodeName]
		nodeUsage.milli += requestedMilliCPU(&v.Spec)
		nodeUsage.memory += requestedMemory(&v.Spec)
		usageByNode[v.Status.NodeName] = nodeUsage
	}

	var pods corev1.PodList
	if err := p.listVisible(ctx, &pods); err != nil {
		return nil, err
	}

	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Spec.NodeName == "" || pod.Labels[virtv1.AppLabel] == launcherLabel || hasEnded(pod) {
			continue
		}

		nodeUsage := usageByNode[pod.Spec.NodeName]

		for _, c := range pod.Spec.Containers {
			nodeUsage.milli += c.Resources.Requests.Cpu().MilliValue()
			nodeUsage.memory += c.Resources.Requests.Memory().Value()
		}

		usageByNode[pod.Spec.NodeName] = nodeUsage
	}

	return usageByNode, nil
}

func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// listVisible lists a kind in all namespaces. If the credentials do not permit this, it lists the kind
// in the machines' namespace. If they do not permit this either, it leaves the list empty.
func (p *Provider) listVisible(ctx context.Context, list client.ObjectList) error {
	err := p.api.List(ctx, list)
	if apierrors.IsForbidden(err) {
		err = p.api.List(ctx, list, client.InNamespace(p.config.Namespace))
	}

	if err != nil && !apierrors.IsForbidden(err) {
		return wrapAPIError("list instances and pods", readCall, err)
	}

	return nil
}

func requestedMemory(spec *virtv1.VirtualMachineInstanceSpec) int64 {
	if m := spec.Domain.Memory; m != nil && m.Guest != nil {
		return m.Guest.Value()
	}

	return spec.Domain.Resources.Requests.Memory().Value()
}

func requestedMilliCPU(spec *virtv1.VirtualMachineInstanceSpec) int64 {
	if request, ok := spec.Domain.Resources.Requests[corev1.ResourceCPU]; ok {
		return request.MilliValue()
	}

	if cpu := spec.Domain.CPU; cpu != nil {
		return int64(max(cpu.Cores, 1)) * int64(max(cpu.Sockets, 1)) * int64(max(cpu.Threads, 1)) * milliPerCore
	}

	return milliPerCore
}

// checkNodeSize returns an error of the given kind if no node is large enough for the shape. It compares
// with the total resources of a node, not with the free ones. The scheduler waits for free resources,
// and an autoscaler can add nodes. If the credentials do not permit listing nodes, the check succeeds.
func (p *Provider) checkNodeSize(ctx context.Context, shape hypervisor.Shape, kind hypervisor.Kind) error {
	nodes, mayList, err := p.listNodes(ctx)
	if err != nil || !mayList {
		return err
	}

	for _, node := range nodes {
		if node.Total.CPU >= int64(shape.CPU) && node.Total.Memory >= shape.Memory {
			return nil
		}
	}

	return hypervisor.Errorf(kind, "NoNodeLargeEnough",
		"none of the %d usable nodes has a total of %d cores and %d MiB of memory", len(nodes), shape.CPU, shape.Memory>>20)
}
