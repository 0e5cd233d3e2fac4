// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package spire tests the complete lifecycle of a machine's identity, from a queued job until nothing is left
// (make e2e-spire). It runs the operator, a real SPIRE server, a real Vault, and machines with the real
// bootstrap-service and a real spire-agent. The hypervisor is simulated, and its machines are child processes
// of the test with root directories of their own.
package spire
