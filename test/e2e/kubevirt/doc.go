// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubevirt tests the complete lifecycle of machines with static addresses, from the creation of a
// node pool to its deletion (make e2e-kubevirt). The operator's program runs with the permissions of its
// service account, on a real API server with KubeVirt's own CRDs. KubeVirt's controllers are simulated.
//
// The simulated guest of each machine reads its config drive, as afterburn does early in the boot. A test
// fails as soon as two running machines have the same address. The cluster that the machines join as nodes,
// and from which they are drained, is the same API server.
package kubevirt
