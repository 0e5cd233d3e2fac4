// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mac renders the plan of a Mac that runs machines with Tart: a kubelet, a firewall and
// address translation for the machines, a private network, the tailnet and node_exporter. launchd
// runs the jobs.
//
//	Config ── Render ──► plan.Plan
//	Config ── HostConfigHash ──► the digest that is the same for all Macs of a fleet
//
// The rules for pf (pf.conf(5), pfctl(8) of macOS) are in anchors below com.apple/, which the rules
// that macOS ships evaluate. Loading these anchors therefore reloads no other rules, in particular
// not those of running machines. The names of the anchors begin with 000 because pf evaluates
// anchors in the order of their names.
package mac
