// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hosts runs fleets of hosts from their first boot to the day they are given back:
// the operator's program on a real API server, Macs that are ordered and adopted at a
// simulated Scaleway and reached at simulated hosts that really run the scripts
// (sim/machost), and a Linux host behind OpenSSH (make e2e-hosts).
//
// What may not happen is watched at the hosts: more of them in the middle of a push than
// maxUnavailable, a canary overtaken, a machine that does not survive, a status that says
// of a host what is not on its disk.
package hosts
