// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// Delays are how long things take. Zero takes no time.
type Delays struct {
	// Address is the time MetalLB takes to give a Service its address.
	Address time.Duration
	// Kubeconfig is the time from the API server's address to the kubeconfig.
	Kubeconfig time.Duration
	// ControlPlane is the time from there until the control plane is available.
	ControlPlane time.Duration
	// Rollout is the time from there until a version is rolled out, first or later.
	Rollout time.Duration
	// Delete is the time from a HostedCluster's deletion until its control plane begins to
	// go.
	Delete time.Duration
}

// Options of a Sim.
type Options struct {
	// Config leads to the API server. It has the kinds.
	Config *rest.Config
	// MetalLBNamespace is where MetalLB looks for its pools. Default: metallb-system.
	MetalLBNamespace string
	// WithoutMetalLB leaves MetalLB out; its kinds may then be missing.
	WithoutMetalLB bool
	// Ignition has NodePools' user data made, and serves what it leads to on loopback.
	Ignition bool
	// Kubeconfig gives the kubeconfig of a hosted cluster. Default: one that leads to the
	// API server of Config, so that the hosted cluster is the management cluster.
	Kubeconfig func(namespace, name string) ([]byte, error)
	// Version gives the version in a release image. Default: what a tag begins with; an
	// image by digest is 4.15.0.
	Version func(image string) (string, error)
	// Supported are the minor versions that HyperShift supports, the newest first.
	// Default: 4.21 to 4.14.
	Supported []string
	// Families are those of the Services of a hosted cluster's control plane, where the
	// management cluster is to have others than the API server's. Default, and where it gives
	// none: the API server's. May be nil.
	Families func(cluster string) []corev1.IPFamily
	// Delays of what happens.
	Delays Delays
	// Clock tells the time. Default: the real one.
	Clock clock.WithTicker
}

// FaultKind is what goes wrong.
type FaultKind string

// What can go wrong. A fault that is taken away fixes itself.
const (
	// Slow adds the fault's Delay to every delay that begins.
	Slow FaultKind = "Slow"
	// NoAddress keeps MetalLB from giving an address.
	NoAddress FaultKind = "NoAddress"
	// NoQuorum keeps etcd, and with it the control plane, from being available.
	NoQuorum FaultKind = "NoQuorum"
	// Unreachable is a control plane whose load balancer can't be reached.
	Unreachable FaultKind = "Unreachable"
	// Degraded is a control plane that works, and says that it is degraded.
	Degraded FaultKind = "Degraded"
	// NoWorkers is a hosted cluster without nodes: the control plane has its version, the
	// cluster's own operators are never done with theirs.
	NoWorkers FaultKind = "NoWorkers"
	// UnhealthyNodes is a NodePool with nodes that are not ready.
	UnhealthyNodes FaultKind = "UnhealthyNodes"
	// Unsupported is a HostedCluster that HyperShift, as it is set up, does not run.
	Unsupported FaultKind = "Unsupported"
	// StuckDeletion keeps a control plane that is deleted.
	StuckDeletion FaultKind = "StuckDeletion"
)

// Fault is a rule of what goes wrong.
type Fault struct {
	Kind FaultKind
	// Cluster is the HostedCluster's name. Empty: every one.
	Cluster string
	// Delay of a Slow fault.
	Delay time.Duration
}

// Violation is something that a correct client does not do.
type Violation struct {
	// Object is the kind, namespace and name.
	Object string
	// What is wrong with it, in the words of HyperShift or MetalLB.
	What string
}

func supported() []string {
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
		o.Version = versionOfTag
	}

	if len(o.Supported) == 0 {
		o.Supported = supported()
	}

	if o.Kubeconfig == nil {
		o.Kubeconfig = ownKubeconfig(o.Config)
	}
}
