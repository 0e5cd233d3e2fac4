// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hypershift plays what a bridge to hosted clusters lives with, on a real API
// server with the projects' own schemas (sim/hypershift/crds): HyperShift's operator,
// MetalLB's controller, and the DPU operator as far as a DPUCluster's status goes.
//
//	HostedCluster ──finalizer──► namespace NAMESPACE-NAME ──► Service kube-apiserver
//	     │                                                        │  ▲ address: MetalLB
//	     └── Secret NAME-admin-kubeconfig, conditions, versions ◄──┘
//	NodePool ──finalizer──► conditions, version
//
// What it does follows github.com/openshift/hypershift, hypershift-operator/controllers
// (hostedcluster, nodepool) and control-plane-operator/controllers/hostedcontrolplane, and
// go.universe.tf/metallb, controller and internal/allocator. Not played: platforms but
// None, pausing, routes, and nodes of its own.
//
// HyperShift answers what it does not take with conditions, MetalLB's webhook refuses it:
// a Sim does the first and keeps both as violations, which fail a test (hypershifttest).
//
// The API server needs kube-controller-manager: it removes what is owned, and namespaces.
package hypershift
