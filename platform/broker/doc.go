// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package broker carries events from Sentinel to adapters. Each event is delivered at least once.
// The events of one resource are handled in order and one at a time. Events that cannot be handled
// become dead letters.
//
//	Publish ──► RabbitMQ
//	                │ many deliveries, each acknowledged separately
//	                ▼
//	            Queue: the waiting events of each key ──► handler
//	                ▲         │ after an error the key waits, others continue
//	                └─────────┘ after the last attempt, or Poison: TOPIC.dead-letter
//
// RabbitMQ lets one process at a time consume a subscription, and a Queue keeps the order within that
// process. A Queue also works without RabbitMQ, for events that the process itself creates. The
// guarantees and their limits are in docs/reference/sentinel.md.
package broker
