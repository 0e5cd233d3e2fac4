// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package feed lets an adapter follow the fleet API by itself, without a broker and a
// Sentinel: Sentinel's own decisions on what has to be looked at (platform/sentinel), over the
// queue that a broker's subscriptions have (platform/broker).
//
//	/changes, lists, cadence ──► what is due ──► queue: a lane for each resource ──► handler
//
// Nothing is kept between two lives of the process: what begins to lead looks at every
// resource once. Replicas agree by a lease of the API on one that works.
package feed
