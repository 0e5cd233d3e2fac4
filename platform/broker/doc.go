// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package broker carries events from Sentinel to adapters: at least once, those of one
// resource in order and one at a time, dead letters for those that nobody can handle.
//
//	Publish ──► RabbitMQ
//	                │ many deliveries, each acked by itself
//	                ▼
//	            Queue: lanes, one for each key ──► handler
//	                ▲         │ an error: the lane waits, others go on
//	                └─────────┘ at last, or Poison: TOPIC.dead-letter
//
// RabbitMQ gives a subscription to one process at a time, and a lane keeps the order inside
// of it. A Queue serves without RabbitMQ as well, for events of the process itself. What is
// promised, and where it ends, is in docs/reference/sentinel.md.
package broker
