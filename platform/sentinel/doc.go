// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sentinel publishes an event for each resource that adapters have to reconcile: when the
// resource changes, every 10 s while it is not reconciled, and every 30 min while it is.
//
//	         ┌── list, then list slowly ──┐
//	fleet API┤                            ├─► index ─► decision ─► queue ─► broker
//	         └── change feed ─────────────┘              ▲
//	                                       poll_interval ┘
//
// The index has everything about each resource that the decision and the event need. While no
// resource changes, Sentinel only reads the change feed. One replica, the leader, sends the events;
// it is elected with a lease of the fleet API. The other replicas keep their index up to date, and
// one of them takes over when the lease ends.
package sentinel
