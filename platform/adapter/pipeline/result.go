// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

import "github.com/hyperfleet/hyperfleet/platform/adapter/resources"

// Status is the result of an event in one word.
type Status string

// Statuses of events.
const (
	// Success means that no phase has failed. Deletions may still be pending.
	Success Status = "success"
	// Failed means that a phase has failed.
	Failed Status = "failed"
	// Skipped means that a precondition is not met, that the event is stale, or that its resource no
	// longer exists.
	Skipped Status = "skipped"
)

// Phase is a phase of the pipeline.
type Phase string

// Phases of the pipeline.
const (
	PhaseEvent         Phase = "event"
	PhaseParams        Phase = "params"
	PhasePreconditions Phase = "preconditions"
	PhaseResources     Phase = "resources"
	PhasePost          Phase = "post_actions"
	// PhaseReport is the framework's own report.
	PhaseReport Phase = "report"
)

// Result is the result of an event.
type Result struct {
	Status Status
	// Phase is the phase that failed. It is empty if no phase has failed.
	Phase Phase
	// Err is the error for the broker. It is nil if the event is done, an error of broker.Poison if
	// the event is malformed, and another error if the event has to be delivered again.
	Err error
	// Failure is the first failure. It is also set if the event is done.
	Failure error
	// Deleting is true if the API's resource is being deleted.
	Deleting bool
	// Handled is for WithRequeue. It is nil if a requeue of the event has to send all calls again.
	Handled *Handled
	// Resources is the result of the resources phase.
	Resources resources.Result
	Trace     Trace
}
