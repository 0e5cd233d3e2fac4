// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kube runs a real Kubernetes API server for tests, with RBAC. An option adds the controllers that
// collect garbage and delete namespaces.
//
// The start of an API server takes a few seconds. Therefore `make test` starts a few servers and shares
// them between all test programs (package lease). A test program has an empty server for itself, and its
// objects are deleted before the next program gets the server. Without `make test`, `go test` starts a
// server for each program. The tests of one program use different namespaces:
//
//	var env *kube.Env
//
//	func TestMain(m *testing.M) {
//		kube.Main(m, &env, kube.ForArea("runners"))
//	}
//
//	func TestClaim(t *testing.T) {
//		namespace := env.Namespace(t)
//		...
//	}
package kube
