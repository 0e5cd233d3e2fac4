// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kube gives tests a real Kubernetes API server, with RBAC and, on request,
// the controllers that collect garbage and delete namespaces.
//
// Starting one takes a few seconds, so a test binary starts one and its tests keep
// apart by namespace:
//
//	var env *kube.Env
//
//	func TestMain(m *testing.M) {
//		kube.Main(m, func(e *kube.Env) { env = e }, kube.WithCRDs("../deploy/crds"))
//	}
//
//	func TestClaim(t *testing.T) {
//		namespace := env.Namespace(t)
//		...
//	}
package kube
