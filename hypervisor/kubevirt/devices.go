// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// buildDevices returns the GPUs and the other devices of the machine
// (https://kubevirt.io/user-guide/compute/host-devices/).
func buildDevices(shape hypervisor.Shape) (gpus []virtv1.GPU, others []virtv1.HostDevice) {
	for _, d := range shape.Devices {
		for range d.Count {
			if d.GPU {
				gpus = append(gpus, virtv1.GPU{Name: fmt.Sprintf("gpu%d", len(gpus)), DeviceName: d.Name})
			} else {
				others = append(others, virtv1.HostDevice{Name: fmt.Sprintf("device%d", len(others)), DeviceName: d.Name})
			}
		}
	}

	return gpus, others
}

func countDevices(spec *virtv1.VirtualMachineInstanceSpec, name string) int64 {
	count := int64(0)

	for _, d := range spec.Domain.Devices.GPUs {
		if d.DeviceName == name {
			count++
		}
	}

	for _, d := range spec.Domain.Devices.HostDevices {
		if d.DeviceName == name {
			count++
		}
	}

	return count
}

// checkDevices returns an error if no usable node offers the devices of the shape. If the credentials do not permit
// listing nodes, the check succeeds.
func (p *Provider) checkDevices(ctx context.Context, shape hypervisor.Shape) error {
	if len(shape.Devices) == 0 {
		return nil
	}

	nodes, mayList, err := p.listNodeObjects(ctx)
	if err != nil || !mayList {
		return err
	}

	most := map[string]int64{}

	for i := range nodes {
		hasAll := true

		for _, d := range shape.Devices {
			offered := countOffered(&nodes[i], d.Name)
			most[d.Name] = max(most[d.Name], offered)
			hasAll = hasAll && offered >= int64(d.Count)
		}

		if hasAll {
			return nil
		}
	}

	var problems []string
	for _, d := range shape.Devices {
		problems = append(problems, fmt.Sprintf("%d of %s, of which a node has at most %d", d.Count, d.Name, most[d.Name]))
	}

	return hypervisor.Errorf(hypervisor.Rejected, "DeviceNotFound",
		"none of the %d usable nodes offers the devices of the machine (%s): add them to spec.configuration.permittedHostDevices of "+
			"the KubeVirt object and check their device plugin, or correct resources.devices", len(nodes), strings.Join(problems, ", "))
}

func countOffered(node *corev1.Node, device string) int64 {
	amount := node.Status.Allocatable[corev1.ResourceName(device)]

	return amount.Value()
}

// occupancyAge is the maximum age of the cached lists that say that no devices are free. Machines of a pool
// that wait for the same devices share these lists. Before a machine gets devices, the lists are read again.
const occupancyAge = 2 * time.Second

// occupancy has the lists that show which devices are free.
type occupancy struct {
	// nodes are the usable nodes. areNodesVisible is false if the credentials do not permit listing nodes.
	nodes           []corev1.Node
	areNodesVisible bool
	instances       []virtv1.VirtualMachineInstance
	pods            []corev1.Pod
}

func (p *Provider) readOccupancy(ctx context.Context) (occupancy, error) {
	nodes, mayList, err := p.listNodeObjects(ctx)
	if err != nil || !mayList {
		return occupancy{}, err
	}

	var (
		instances virtv1.VirtualMachineInstanceList
		pods      corev1.PodList
	)

	for _, list := range []client.ObjectList{&instances, &pods} {
		if err := p.listVisible(ctx, list); err != nil {
			return occupancy{}, err
		}
	}

	return occupancy{nodes: nodes, areNodesVisible: true, instances: instances.Items, pods: pods.Items}, nil
}

// checkFreeDevices returns an error of kind NoCapacity if no usable node has the devices of the shape free. Instances
// that wait for a node count too. Two calls at the same time may see the same free device. The scheduler then lets
// one of the machines wait.
func (p *Provider) checkFreeDevices(ctx context.Context, shape hypervisor.Shape) error {
	if len(shape.Devices) == 0 {
		return nil
	}

	start := p.clock.Now()

	err := p.checkOccupancy(ctx, shape, occupancyAge)
	if err == nil { // other machines may have taken the devices since an older list was read
		err = p.checkOccupancy(ctx, shape, p.clock.Since(start))
	}

	if err == nil {
		p.occupancy.Invalidate() // the machine takes the devices
	}

	return err
}

// checkOccupancy is checkFreeDevices with lists of at most an age.
func (p *Provider) checkOccupancy(ctx context.Context, shape hypervisor.Shape, maxAge time.Duration) error {
	current, err := p.occupancy.Get(ctx, maxAge)
	if err != nil || !current.areNodesVisible {
		return err
	}

	return current.checkFree(shape)
}

// checkFree is checkFreeDevices with these lists.
func (o occupancy) checkFree(shape hypervisor.Shape) error {
	var problems []string

	for _, d := range shape.Devices {
		used := sumUsedDevices(o.instances, o.pods, d.Name)
		// An instance that waits for a node takes a device of any node.
		free, most := -used[""], int64(0)

		for i := range o.nodes {
			if isOnline(&o.nodes[i]) {
				onNode := max(0, countOffered(&o.nodes[i], d.Name)-used[o.nodes[i].Name])
				free, most = free+onNode, max(most, onNode)
			}
		}

		if most < int64(d.Count) || free < int64(d.Count) {
			problems = append(problems, fmt.Sprintf("%d of device %s, of which %d are free", d.Count, d.Name, max(0, free)))
		}
	}

	if len(problems) == 0 {
		return nil
	}

	return hypervisor.Errorf(hypervisor.NoCapacity, "NoCapacity",
		"none of the %d usable nodes can take a machine with %s", len(o.nodes), strings.Join(problems, " and "))
}

// sumUsedDevices returns how many of the devices with the name are used on each node. The devices of instances
// without a node are those of node "".
func sumUsedDevices(instances []virtv1.VirtualMachineInstance, pods []corev1.Pod, device string) map[string]int64 {
	used := map[string]int64{}

	for i := range instances {
		if v := &instances[i]; !v.IsFinal() {
			used[v.Status.NodeName] += countDevices(&v.Spec, device)
		}
	}

	for i := range pods {
		pod := &pods[i]
		if pod.Spec.NodeName == "" || hasEnded(pod) || pod.Labels[virtv1.AppLabel] == launcherLabel {
			continue
		}

		for _, c := range pod.Spec.Containers {
			amount := c.Resources.Requests[corev1.ResourceName(device)]
			used[pod.Spec.NodeName] += amount.Value()
		}
	}

	return used
}
