// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bridge runs hosted clusters for DPUs from bridge to gone: the operator's program,
// with the rights of its service account, on a real API server with HyperShift's and
// MetalLB's own schemas, whose controllers are simulated, and a registry on loopback
// (make e2e-bridge).
//
// The operator is also killed with SIGKILL before and after everything that it writes. No
// object is made twice then, and none is left. What HyperShift refuses, and what else may go
// wrong, the area's own tests have (bridge).
package bridge
