// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package linux says what a plain Linux host is made of that runs machines: an agent, a
// firewall of nftables, the tailnet and node_exporter. Its units are systemd's.
//
//	Config ── Render ──► plan.Plan
//	Config ── HostConfigHash ──► the digest that is the same for all hosts of a fleet
package linux
