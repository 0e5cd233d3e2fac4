// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// Delays are the durations of the simulated operations. Zero means that an operation takes no time.
type Delays struct {
	// Address is the time that MetalLB takes to allocate the address of a Service.
	Address time.Duration
	// Kubeconfig is the time from the API server's address to the kubeconfig.
	Kubeconfig time.Duration
	// ControlPlane is the time from the kubeconfig until the control plane is available.
	ControlPlane time.Duration
	// Rollout is the time from an available control plane until a version is rolled out. It applies to
	// the first version and to each update.
	Rollout time.Duration
	// Delete is the time from the deletion of a HostedCluster until the deletion of its control plane
	// starts.
	Delete time.Duration
}

// Options configure a Sim.
type Options struct {
	// Config is the client configuration of the API server. The API server must have the CRDs.
	Config *rest.Config
	// MetalLBNamespace is the namespace of MetalLB's pools. Default: metallb-system.
	MetalLBNamespace string
	// WithoutMetalLB disables the simulated MetalLB. Its CRDs are not needed then.
	WithoutMetalLB bool
	// OldMetalLB simulates MetalLB before 0.14.9, which reads only annotations with the prefix metallb.universe.tf.
	OldMetalLB bool
	// Ignition creates user data for NodePools, and serves the Ignition configuration that the user data
	// refers to on a loopback address.
	Ignition bool
	// Kubeconfig returns the kubeconfig of a hosted cluster. Default: the kubeconfig of the API server in
	// Config. The hosted cluster is then the management cluster.
	Kubeconfig func(namespace, name string) ([]byte, error)
	// Version returns the version of a release image. Default: the version at the start of the image's
	// tag, or 4.15.0 for an image with a digest.
	Version func(image string) (string, error)
	// Supported are the minor versions that HyperShift supports, the newest first.
	// Default: 4.21 to 4.14.
	Supported []string
	// Families returns the IP families of the Services of a hosted cluster's control plane. It simulates
	// a management cluster with other families than the API server's. If it is nil or returns none, the
	// families are those that the API server has set.
	Families func(cluster string) []corev1.IPFamily
	// Delays are the durations of the simulated operations.
	Delays Delays
	// Clock is the Sim's clock. Default: the real clock.
	Clock clock.WithTicker
}

// FaultKind is a kind of failure.
type FaultKind string

// The kinds of failures. When a test removes a fault, the Sim recovers.
const (
	// Slow adds the fault's Delay to every delay that starts.
	Slow FaultKind = "Slow"
	// NoAddress prevents MetalLB from allocating an address.
	NoAddress FaultKind = "NoAddress"
	// NoQuorum makes etcd unavailable, and with it the control plane.
	NoQuorum FaultKind = "NoQuorum"
	// Unreachable makes the load balancer of a control plane unreachable.
	Unreachable FaultKind = "Unreachable"
	// Degraded makes a control plane that works report that it is degraded.
	Degraded FaultKind = "Degraded"
	// NoWorkers simulates a hosted cluster without nodes. The control plane reaches its version, but the
	// cluster's own operators never finish their rollout.
	NoWorkers FaultKind = "NoWorkers"
	// UnhealthyNodes makes the nodes of a NodePool not ready.
	UnhealthyNodes FaultKind = "UnhealthyNodes"
	// Unsupported makes HyperShift's configuration exclude a HostedCluster.
	Unsupported FaultKind = "Unsupported"
	// StuckDeletion prevents the deletion of a control plane.
	StuckDeletion FaultKind = "StuckDeletion"
)

// Fault is a failure that the Sim simulates.
type Fault struct {
	Kind FaultKind
	// Cluster is the name of the HostedCluster with the fault. For UnhealthyNodes and Slow, it is the name
	// of the object with the fault, for example a NodePool. If it is empty, all objects have the fault.
	Cluster string
	// Delay is the additional delay of a Slow fault.
	Delay time.Duration
}

// Violation is an action that a correct client does not take.
type Violation struct {
	// Object is the kind, namespace and name of the invalid object.
	Object string
	// Message is the error message of HyperShift or MetalLB.
	Message string
}

func defaultSupported() []string {
	return []string{"4.21", "4.20", "4.19", "4.18", "4.17", "4.16", "4.15", "4.14"}
}

func setDefaults(o *Options) {
	if o.MetalLBNamespace == "" {
		o.MetalLBNamespace = "metallb-system"
	}

	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}

	if o.Version == nil {
		o.Version = parseTagVersion
	}

	if len(o.Supported) == 0 {
		o.Supported = defaultSupported()
	}

	if o.Kubeconfig == nil {
		o.Kubeconfig = managementKubeconfig(o.Config)
	}
}
