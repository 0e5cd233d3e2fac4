// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/clock"
	virtv1 "kubevirt.io/api/core/v1"
)

// Node is a host of the simulated cluster.
type Node struct {
	Name   string
	CPU    int64
	Memory resource.Quantity
}

// Delays are how long things take. Zero takes no time.
type Delays struct {
	// Provision is the time to make a DataVolume's disk.
	Provision time.Duration
	// Schedule is the time until a machine's pod runs on a node.
	Schedule time.Duration
	// Boot is the time from there until the machine runs.
	Boot time.Duration
	// Stop is the time a machine takes to power off when it is asked to.
	Stop time.Duration
	// Migrate is the time of each step of a live migration.
	Migrate time.Duration
}

// Options of a Cluster.
type Options struct {
	// Namespaces that it looks after. At least one.
	Namespaces []string
	// Nodes; they are made as Kubernetes nodes where they are not there. Default: two with 64
	// cores and 256Gi, named after the first namespace.
	Nodes []Node
	// Delays of what happens.
	Delays Delays
	// Guest runs in each machine while it runs; when it returns, the machine powers off.
	// Without one a machine stays on. See ExecGuest.
	Guest func(Guest)
	// Images are the containerDisk images that can be pulled. None means all.
	Images []string
	// Judge says once more why a VirtualMachine is not let in, where KubeVirt's own webhook is
	// at hand (test/upstream): a verdict that is not Validate's is a problem. May be nil.
	Judge func(context.Context, *virtv1.VirtualMachine) ([]string, error)
	// Clock tells the time. Default: the real one.
	Clock clock.WithTicker
}

// Guest is a booted machine as what runs in it sees it.
type Guest struct {
	// Context ends when the machine is switched off.
	Context context.Context //nolint:containedctx // a value for callbacks
	// Namespace and Name of the machine, and the Node it was started on.
	Namespace, Name, Node string
	// Drive holds the files of its cloud-init ISO by name; nil when there is none.
	Drive map[string][]byte
	// Log is its console.
	Log func(format string, args ...any)
}

// Violation is something that a correct client does not do.
type Violation struct {
	// Object is the kind, namespace and name.
	Object string
	// What is wrong with it, in KubeVirt's words.
	What string
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
