// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package addresses runs fleets whose machines get their addresses of pools: the runners
// and the networking area beside each other, on a real API server and a simulated
// hypervisor.
package addresses
