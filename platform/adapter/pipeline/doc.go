// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pipeline handles one event of an adapter:
//
//	event ─► params ─► preconditions ─► resources ─► post ─► done, again, or poison
//	            │ failed      │ unmet       │ failed    ▲
//	            └─────────────┴─────────────┴───────────┘
//
// The post phase runs after success, after failure and after an unmet precondition. If a phase has
// failed and the task file did not report Available=False for the event's generation, the framework
// reports it. The failure is then visible in the resource's status, and Sentinel sends the next event
// soon.
//
// The pipeline returns transient failures to the broker, which delivers the event again. It reports
// terminal failures, which a person has to fix, and the event is done. A malformed event is poison.
package pipeline
