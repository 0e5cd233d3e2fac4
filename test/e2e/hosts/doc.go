// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hosts tests the complete lifecycle of hosts, from their first boot until they are returned (make
// e2e-hosts). The operator's program runs on a real API server. It orders and adopts Macs at a simulated
// Scaleway, and configures them on simulated hosts that really run the scripts (sim/machost). It also
// configures a Linux host with a real OpenSSH server.
//
// The tests check invariants on the hosts: never more hosts in the middle of a push than maxUnavailable, no
// push before the canary has finished, no loss of a host, and no status that differs from the host's disk.
package hosts
