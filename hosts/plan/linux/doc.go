// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package linux renders the plan of a Linux host that runs machines: an agent, an nftables
// firewall, the tailnet and node_exporter. systemd runs the services.
//
//	Config ── Render ──► plan.Plan
//	Config ── HostConfigHash ──► the digest that is the same for all hosts of a fleet
package linux
