// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package demo implements the command `hyperfleet-demo`, which runs CI jobs in fresh machines on one
// computer.
//
// The demo starts etcd, kube-apiserver, a simulated Proxmox VE cluster (pvesim), a simulated CI
// platform (forgesim) and the operator, each as a separate process. It queues jobs, watches the
// machine of each job, and waits until all machines, claims, runners and ISOs are deleted. The
// numbers in the report are measured through the Kubernetes API, through the control APIs of the
// simulators, and on the operator process.
//
//	preflight -> stack (kube, CRDs, sims, operator) -> objects -> jobs -> clean -> report
//
// The demo queues jobs and observes them through the control APIs of the simulators. The operator uses
// only the APIs that the real products have.
package demo
