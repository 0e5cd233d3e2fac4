// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pipeline handles one event of an adapter:
//
//	event ─► params ─► preconditions ─► resources ─► post ─► done, again, or poison
//	            │ failed      │ unmet       │ failed    ▲
//	            └─────────────┴─────────────┴───────────┘
//
// The post phase runs whatever came before. When something has failed, and the task file
// did not itself report Available=False for the event's generation, the framework does:
// so that a failure always shows at the resource, and Sentinel comes back soon.
//
// What happens to the event: failures that may go away by themselves are handed back to
// the broker, which tries again; failures that a person has to fix are reported and the
// event is done; an event that can't be meant is poison.
package pipeline
