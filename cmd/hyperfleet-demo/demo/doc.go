// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package demo is the command `hyperfleet-demo`: the product's main job on one machine.
//
// It starts etcd and a kube-apiserver, a simulated Proxmox VE cluster (pvesim), a
// simulated CI platform (forgesim) and the operator, each as a process of its own, as a
// user would run them. Then it queues jobs, watches each of them get a machine of its
// own, and waits until nothing is left of any of them. Everything it says is measured:
// at the Kubernetes API, at the simulators' control interfaces, and at the operator's
// process.
//
//	preflight -> stack (kube, CRDs, sims, operator) -> objects -> jobs -> clean -> report
//
// Only observation goes through the simulators' control interfaces; the operator sees
// nothing but the interfaces that the real systems have.
package demo
