// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kube gives tests a real Kubernetes API server, with RBAC and, on request,
// the controllers that collect garbage and delete namespaces.
//
// Starting one takes a few seconds, so `make test` starts a few for all test programs
// (package lease): a program has one for itself, with nothing in it, and what it leaves there
// is wiped before the next one gets it. `go test` alone starts its own. The tests of a program
// keep apart by namespace:
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
