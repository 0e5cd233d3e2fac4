// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubeproc runs a Kubernetes control plane on the loopback interface: real
// etcd and kube-apiserver, and kube-controller-manager on request, with RBAC. The
// demo and the tests use it.
//
// There is no kubelet and no scheduler: objects are stored, validated, watched and,
// with the controller manager, garbage collected, but no pod runs.
package kubeproc
