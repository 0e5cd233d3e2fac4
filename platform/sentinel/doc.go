// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sentinel tells adapters which resources to look at: at once when one changes,
// every 10 s while it is not reconciled, every 30 min while it is.
//
//	         ┌── list, then list slowly ──┐
//	fleet API┤                            ├─► index ─► decision ─► queue ─► broker
//	         └── change feed ─────────────┘              ▲
//	                                       poll_interval ┘
//
// The index holds of each resource what the decision and the event need, so that nothing
// is read at rest but the change feed. Replicas agree by a lease of the fleet API on one
// that sends; the others keep their index, and take over when its lease ends.
package sentinel
