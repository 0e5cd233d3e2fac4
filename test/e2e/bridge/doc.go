// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bridge tests the complete lifecycle of hosted clusters for DPUs, from the creation of a bridge to
// its deletion (make e2e-bridge). The operator's program runs with the permissions of its service account, on
// a real API server with the CRDs of HyperShift and MetalLB, whose controllers are simulated. A registry runs
// on loopback.
//
// The tests also kill the operator with SIGKILL before and after each of its writes. Then no object may be
// created twice, and none may be left over. The bridge area's own tests cover objects that HyperShift rejects
// and other failures (package bridge).
package bridge
