// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

import "github.com/hyperfleet/hyperfleet/platform/adapter/resources"

// Status is how an event ended.
type Status string

// Statuses.
const (
	// Success: all is as the task file wants it, or on its way there.
	Success Status = "success"
	// Failed: a phase has failed.
	Failed Status = "failed"
	// Skipped: preconditions are unmet, the event is older than its objects, or its
	// resource is gone.
	Skipped Status = "skipped"
)

// Phase is a part of the work on an event.
type Phase string

// Phases.
const (
	PhaseEvent         Phase = "event"
	PhaseParams        Phase = "params"
	PhasePreconditions Phase = "preconditions"
	PhaseResources     Phase = "resources"
	PhasePost          Phase = "post_actions"
	// PhaseReport is the framework's own report.
	PhaseReport Phase = "report"
)

// Result is what became of an event.
type Result struct {
	Status Status
	// Phase that failed, if one has.
	Phase Phase
	// Err is what the broker is to be told: nil if the event is done with, an error if it
	// is to be delivered again, and one marked with broker.Poison if nobody can handle it.
	Err error
	// Failure is what has failed; it is there also when the event is done with.
	Failure error
	// Deleting says that the API's resource is being deleted.
	Deleting bool
	// Resources are what became of the entries.
	Resources resources.Result
	Trace     Trace
}
