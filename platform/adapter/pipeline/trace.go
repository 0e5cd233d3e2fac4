// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

import "github.com/hyperfleet/hyperfleet/platform/adapter/resources"

// Trace is what was done with one event, and why: every decision with the expression
// behind it. Values are in it only where Options.Values asks for them; they may be
// secrets.
type Trace struct {
	Event         EventTrace          `json:"event"`
	Params        []Step              `json:"params,omitempty"`
	Preconditions []Step              `json:"preconditions,omitempty"`
	Resources     []resources.Outcome `json:"resources,omitempty"`
	Payloads      []Step              `json:"payloads,omitempty"`
	Actions       []Step              `json:"actions,omitempty"`
	// Report is what the framework itself reported; nil if it had no cause to.
	Report *ReportTrace `json:"report,omitempty"`
	Result ResultTrace  `json:"result"`
}

// EventTrace is the event.
type EventTrace struct {
	ID   string `json:"id"`
	Type string `json:"type"`
	// ResourceID, Kind and Generation are those of its data.
	ResourceID string `json:"resource_id,omitempty"`
	Kind       string `json:"kind,omitempty"`
	Generation int64  `json:"generation,omitempty"`
}

// What became of a step.
const (
	// StepDone: it has a value, was met, built or done.
	StepDone = "done"
	// StepDefault: the param's default stands in.
	StepDefault = "default"
	// StepAbsent: an optional param has no value; expressions see it as null.
	StepAbsent = "absent"
	// StepUnmet: the precondition does not hold.
	StepUnmet = "unmet"
	// StepSkipped: its gate is false, or what it needs was skipped.
	StepSkipped = "skipped"
	// StepFailed: see the error.
	StepFailed = "failed"
	// StepDiscarded: the API has a later report already.
	StepDiscarded = "discarded"
	// StepNotReached: an earlier step ended the phase.
	StepNotReached = "not reached"
)

// Step is what became of a param, a captured value, a precondition, a payload or an action.
type Step struct {
	Name string `json:"name"`
	// Source is where a value comes from.
	Source  string `json:"source,omitempty"`
	Outcome string `json:"outcome"`
	// When is the gate of a payload or an action.
	When  *resources.Gate `json:"when,omitempty"`
	Value any             `json:"value,omitempty"`
	Call  *Call           `json:"call,omitempty"`
	// Captured, Conditions and Expression are those of a precondition.
	Captured   []Step          `json:"captured,omitempty"`
	Conditions []Compared      `json:"conditions,omitempty"`
	Expression *resources.Gate `json:"expression,omitempty"`
	// Reason why an action was skipped, where that is not its gate.
	Reason string `json:"reason,omitempty"`
	Error  string `json:"error,omitempty"`
}

// Call is one call of the task file, however often it was tried.
type Call struct {
	Method string `json:"method"`
	URL    string `json:"url,omitempty"`
	// Status of the answer; 0 if there was none.
	Status int `json:"status"`
}

// Compared is one condition of a precondition.
type Compared struct {
	Field    string `json:"field"`
	Operator string `json:"operator"`
	Met      bool   `json:"met"`
	Value    any    `json:"value,omitempty"`
	Error    string `json:"error,omitempty"`
}

// ReportTrace is the framework's own report.
type ReportTrace struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Outcome is done, discarded, or failed with an error.
	Outcome string `json:"outcome"`
	Error   string `json:"error,omitempty"`
}

// What becomes of an event.
const (
	// AckDone: it is done with.
	AckDone = "done"
	// AckAgain: it is delivered again.
	AckAgain = "again"
	// AckPoison: it goes to the dead letters.
	AckPoison = "poison"
)

// Why a whole event was skipped, beside an unmet precondition.
const (
	// ReasonGone: the API has no such resource.
	ReasonGone = "the resource is gone"
	// ReasonStale: the API has a later generation than the event.
	ReasonStale = "the resource has a later generation than the event"
)

// ResultTrace is how it ended.
type ResultTrace struct {
	Status Status `json:"status"`
	// Phase that failed, if one has.
	Phase Phase  `json:"phase,omitempty"`
	Error string `json:"error,omitempty"`
	// Reason why resources were left as they are, if the whole event was skipped.
	Reason string `json:"reason,omitempty"`
	// Event is done, again or poison.
	Event string `json:"event"`
}
