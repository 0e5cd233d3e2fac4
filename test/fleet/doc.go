// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fleet puts the runners area together for tests: a real API server, simulated
// Proxmox VE and GitHub, and the area's controllers in the test's own process, as one
// operator would run them. Every Fleet has a namespace, a hypervisor and a forge of its
// own, so tests of one binary run side by side on one API server.
package fleet
