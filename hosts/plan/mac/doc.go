// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mac says what a Mac is made of that runs machines under Tart: a kubelet, a
// firewall and address translation for the machines, a private network, the tailnet and
// node_exporter. Their jobs are launchd's.
//
//	Config ── Render ──► plan.Plan
//	Config ── HostConfigHash ──► the digest that is the same for all Macs of a fleet
//
// pf (pf.conf(5), pfctl(8) of macOS): the rules live in anchors below com.apple/, which
// the rules that macOS ships ask, so that loading them needs no other rule to be loaded
// anew, above all not those of running machines. Their names begin with 000 because
// anchors are asked in the order of their names.
package mac
