// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package feed lets an adapter follow the fleet API without a broker and a separate Sentinel. It runs
// Sentinel's decisions on due resources (platform/sentinel) in the adapter's process, and puts the
// events into the queue that a broker's subscriptions use (platform/broker).
//
//	/changes, lists, resyncs ──► due events ──► queue: in order for each resource ──► handler
//
// A restart of the process loses all state. A process that becomes the leader handles every resource
// once. A lease of the API elects the one replica that handles events.
package feed
