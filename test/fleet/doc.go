// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fleet sets up the runners area for tests: a real API server, a simulated Proxmox VE, a simulated
// GitHub, and the area's controllers in the test's own process, configured as in the operator. Every Fleet
// has its own namespace, hypervisor and CI platform, so that tests of one binary can run in parallel on one
// API server.
package fleet
