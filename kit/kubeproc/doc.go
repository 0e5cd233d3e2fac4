// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubeproc runs a Kubernetes control plane on the loopback interface. It runs real etcd and
// kube-apiserver with RBAC, and optionally kube-controller-manager. The demo and the tests use it.
//
// The control plane has no kubelet and no scheduler. Objects are stored, validated, watched and,
// with the controller manager, garbage-collected, but no pod runs.
package kubeproc
