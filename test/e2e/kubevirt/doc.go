// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubevirt runs machines with static addresses from node pool to gone: the
// operator's program, with the rights of its service account, on a real API server with
// KubeVirt's own schemas, whose controllers are simulated (make e2e-kubevirt).
//
// What is inside each machine reads its config drive, as afterburn does at early boot, and
// the test fails at the moment when two running machines have one address. The cluster that the
// machines join, and out of which they are drained, is the same API server.
package kubevirt
