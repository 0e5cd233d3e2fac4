// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/clock"
	virtv1 "kubevirt.io/api/core/v1"
)

// Node is a Kubernetes node of the simulated cluster.
type Node struct {
	Name   string
	CPU    int64
	Memory resource.Quantity
	// Devices are the numbers of devices that the node offers, by their resource names.
	Devices map[corev1.ResourceName]int64
}

// Delays are the durations of the simulated operations. Zero means that an operation takes no time.
type Delays struct {
	// Provision is the time to provision the disk of a DataVolume.
	Provision time.Duration
	// Schedule is the time until a machine's pod runs on a node.
	Schedule time.Duration
	// Boot is the time from the start of the pod until the machine runs.
	Boot time.Duration
	// Stop is the time that a machine takes to shut down.
	Stop time.Duration
	// Migrate is the duration of each step of a live migration.
	Migrate time.Duration
}

// Options configure a Cluster.
type Options struct {
	// Namespaces are the namespaces that the cluster watches. At least one is required.
	Namespaces []string
	// Nodes are the nodes of the cluster. Start creates a Kubernetes Node for each that does not exist.
	// Default: two nodes with 64 cores and 256Gi, named after the first namespace.
	Nodes []Node
	// Delays are the durations of the simulated operations.
	Delays Delays
	// Guest simulates the guest of each machine. The machine powers off when Guest returns. If Guest is
	// nil, machines stay on. See Exec.
	Guest func(Guest)
	// Images are the containerDisk images that can be pulled. If it is empty, all images can.
	Images []string
	// Webhook returns the causes for which KubeVirt's own webhook rejects a VirtualMachine (test/upstream).
	// A result that differs from the result of Validate is a violation or a problem. May be nil.
	Webhook func(context.Context, *virtv1.VirtualMachine) ([]string, error)
	// Clock is the cluster's clock. Default: the real clock.
	Clock clock.WithTicker
}

// Guest gives the simulation of a guest access to its booted machine.
type Guest struct {
	// Context ends when the machine is powered off.
	Context context.Context //nolint:containedctx // a value for callbacks
	// Namespace and Name identify the machine, and Node is the node on which it was started.
	Namespace, Name, Node string
	// Drive holds the files of the cloud-init ISO by name. It is nil if the machine has no ISO.
	Drive map[string][]byte
	// Log writes a line to the machine's console.
	Log func(format string, args ...any)
}

// Violation is an action that a correct client does not take.
type Violation struct {
	// Object is the kind, namespace and name of the invalid object.
	Object string
	// Message is the error message of KubeVirt.
	Message string
}

const (
	defaultCPU    = 64
	defaultMemory = 256 << 30
)

func setDefaults(o *Options) {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}

	if len(o.Nodes) == 0 && len(o.Namespaces) > 0 {
		for _, n := range []string{"-node-1", "-node-2"} {
			o.Nodes = append(o.Nodes, Node{
				Name: o.Namespaces[0] + n, CPU: defaultCPU, Memory: *resource.NewQuantity(defaultMemory, resource.BinarySI),
			})
		}
	}
}
