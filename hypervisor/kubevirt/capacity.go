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

// launcher is the value of the label kubevirt.io of the pods that instances run in.
const launcher = "virt-launcher"

// Capacity gives what the usable nodes have; see hypervisor.Provider. What is free is what
// Kubernetes' scheduler would find: allocatable, less the requests of pods and the
// memory of machines. Where the credentials do not suffice to see nodes it is empty, and
// where they do not suffice to see all pods, too much is called free. Disks are not
// counted: storage classes do not say what they have.
func (p *Provider) Capacity(ctx context.Context) (hypervisor.Capacity, error) {
	machines, err := p.count(ctx)
	if err != nil {
		return hypervisor.Capacity{}, err
	}

	nodes, seen, err := p.nodes(ctx)
	if err != nil || !seen {
		return hypervisor.Capacity{Machines: machines}, err
	}

	out := hypervisor.Capacity{Nodes: nodes, Machines: machines}

	used, err := p.used(ctx)
	if err != nil {
		return hypervisor.Capacity{}, err
	}

	for i := range out.Nodes {
		node := &out.Nodes[i]
		taken := used[node.Name]
		node.Free.CPU = max(node.Total.CPU-milliToCores(taken.milli), 0)
		node.Free.Memory = max(node.Total.Memory-taken.memory, 0)

		out.Total.CPU += node.Total.CPU
		out.Total.Memory += node.Total.Memory

		if node.Online {
			out.Free.CPU += node.Free.CPU
			out.Free.Memory += node.Free.Memory
		}
	}

	return out, nil
}

// count gives how many machines are this operator's.
func (p *Provider) count(ctx context.Context) (int, error) {
	ctx, cancel := p.in(ctx)
	defer cancel()

	var all virtv1.VirtualMachineList
	if err := p.api.List(ctx, &all, client.InNamespace(p.config.Namespace), p.id.selector()); err != nil {
		return 0, explain("count machines", false, err)
	}

	owned := 0

	for i := range all.Items {
		if _, ours := p.id.owns(&all.Items[i]); ours {
			owned++
		}
	}

	return owned, nil
}

// nodes gives the usable nodes with what they have in all, and whether they may be seen.
func (p *Provider) nodes(ctx context.Context) ([]hypervisor.Node, bool, error) {
	ctx, cancel := p.in(ctx)
	defer cancel()

	var all corev1.NodeList

	err := p.api.List(ctx, &all, client.MatchingLabels{virtv1.NodeSchedulable: "true"})
	if apierrors.IsForbidden(err) {
		return nil, false, nil
	}

	if err != nil {
		return nil, false, explain("list nodes", false, err)
	}

	var out []hypervisor.Node

	for i := range all.Items {
		if node := &all.Items[i]; p.usable(node) {
			total := hypervisor.Resources{
				CPU: node.Status.Allocatable.Cpu().Value(), Memory: node.Status.Allocatable.Memory().Value(),
			}

			out = append(out, hypervisor.Node{Name: node.Name, Online: online(node), Total: total, Free: total})
		}
	}

	slices.SortFunc(out, func(a, b hypervisor.Node) int { return strings.Compare(a.Name, b.Name) })

	return out, true, nil
}

func (p *Provider) usable(node *corev1.Node) bool {
	if len(p.config.Nodes) > 0 && !slices.Contains(p.config.Nodes, node.Labels[corev1.LabelHostname]) {
		return false
	}

	return labels.SelectorFromSet(p.config.NodeSelector).Matches(labels.Set(node.Labels))
}

func online(node *corev1.Node) bool {
	return !node.Spec.Unschedulable && slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// amount is what is taken of a node, CPU in thousandths of a core.
type amount struct{ milli, memory int64 }

const milliPerCore = 1000

func milliToCores(milli int64) int64 { return (milli + milliPerCore - 1) / milliPerCore }

// used gives what is taken of each node: by instances, and by pods that are not the
// instances' own, as far as both may be seen.
func (p *Provider) used(ctx context.Context) (map[string]amount, error) {
	ctx, cancel := p.in(ctx)
	defer cancel()

	used := map[string]amount{}

	var instances virtv1.VirtualMachineInstanceList
	if err := p.listAll(ctx, &instances); err != nil {
		return nil, err
	}

	for i := range instances.Items {
		v := &instances.Items[i]
		if v.IsFinal() || v.Status.NodeName == "" {
			continue
		}

		taken := used[v.Status.NodeName]
		taken.milli += milliOf(&v.Spec)
		taken.memory += memoryOf(&v.Spec)
		used[v.Status.NodeName] = taken
	}

	var pods corev1.PodList
	if err := p.listAll(ctx, &pods); err != nil {
		return nil, err
	}

	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Spec.NodeName == "" || pod.Labels[virtv1.AppLabel] == launcher ||
			pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}

		taken := used[pod.Spec.NodeName]

		for _, c := range pod.Spec.Containers {
			taken.milli += c.Resources.Requests.Cpu().MilliValue()
			taken.memory += c.Resources.Requests.Memory().Value()
		}

		used[pod.Spec.NodeName] = taken
	}

	return used, nil
}

// listAll lists a kind in all namespaces, or in the machines' own where no more is
// allowed, or not at all.
func (p *Provider) listAll(ctx context.Context, list client.ObjectList) error {
	err := p.api.List(ctx, list)
	if apierrors.IsForbidden(err) {
		err = p.api.List(ctx, list, client.InNamespace(p.config.Namespace))
	}

	if err != nil && !apierrors.IsForbidden(err) {
		return explain("list what runs on the nodes", false, err)
	}

	return nil
}

func memoryOf(spec *virtv1.VirtualMachineInstanceSpec) int64 {
	if m := spec.Domain.Memory; m != nil && m.Guest != nil {
		return m.Guest.Value()
	}

	return spec.Domain.Resources.Requests.Memory().Value()
}

func milliOf(spec *virtv1.VirtualMachineInstanceSpec) int64 {
	if request, ok := spec.Domain.Resources.Requests[corev1.ResourceCPU]; ok {
		return request.MilliValue()
	}

	if cpu := spec.Domain.CPU; cpu != nil {
		return int64(max(cpu.Cores, 1)) * int64(max(cpu.Sockets, 1)) * int64(max(cpu.Threads, 1)) * milliPerCore
	}

	return milliPerCore
}

// fits makes sure that some node is large enough for the shape, however much of it is
// taken now: the scheduler waits for room, and an autoscaler may bring it. Where nodes
// can't be seen everything fits.
func (p *Provider) fits(ctx context.Context, shape hypervisor.Shape, kind hypervisor.Kind) error {
	nodes, seen, err := p.nodes(ctx)
	if err != nil || !seen {
		return err
	}

	for _, node := range nodes {
		if node.Total.CPU >= int64(shape.CPU) && node.Total.Memory >= shape.Memory {
			return nil
		}
	}

	return hypervisor.Errorf(kind, "NoNodeLargeEnough",
		"none of the %d usable nodes has %d cores and %d MiB in all", len(nodes), shape.CPU, shape.Memory>>20)
}
