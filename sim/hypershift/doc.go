// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hypershift simulates the controllers that the bridge depends on, on a real API server with
// the projects' own CRDs (sim/hypershift/crds): HyperShift's operator, MetalLB's controller, and the
// part of the DPU operator that writes the status of a DPUCluster.
//
//	HostedCluster ──finalizer──► namespace NAMESPACE-NAME ──► Service kube-apiserver
//	     │                                                        │  ▲ address: MetalLB
//	     └── Secret NAME-admin-kubeconfig, conditions, versions ◄──┘
//	NodePool ──finalizer──► conditions, version
//
// The simulator follows github.com/openshift/hypershift, hypershift-operator/controllers
// (hostedcluster, nodepool) and control-plane-operator/controllers/hostedcontrolplane, and
// go.universe.tf/metallb, controller and internal/allocator. It does not simulate platforms other than
// None, pausing, routes, and nodes of its own.
//
// HyperShift reports an invalid object in the object's conditions. MetalLB's webhook rejects an invalid
// object. A Sim writes the conditions, but it does not reject objects. It records both cases as
// violations, and a violation fails the test (hypershifttest).
//
// The API server needs kube-controller-manager, which deletes owned objects and namespaces.
package hypershift
