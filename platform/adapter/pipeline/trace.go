// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

import "github.com/hyperfleet/hyperfleet/platform/adapter/resources"

// Trace records what the pipeline did with one event: every decision, with the expression that caused
// it. It contains values only with Options.IncludeValues, because values may be secrets.
type Trace struct {
	Event         EventTrace          `json:"event"`
	Params        []Step              `json:"params,omitempty"`
	Preconditions []Step              `json:"preconditions,omitempty"`
	Resources     []resources.Outcome `json:"resources,omitempty"`
	Payloads      []Step              `json:"payloads,omitempty"`
	Actions       []Step              `json:"actions,omitempty"`
	// Report is the framework's own report. It is nil if the framework did not report.
	Report *ReportTrace `json:"report,omitempty"`
	Result ResultTrace  `json:"result"`
}

// EventTrace identifies the event.
type EventTrace struct {
	ID   string `json:"id"`
	Type string `json:"type"`
	// ResourceID, Kind and Generation are from the event's data.
	ResourceID string `json:"resource_id,omitempty"`
	Kind       string `json:"kind,omitempty"`
	Generation int64  `json:"generation,omitempty"`
}

// Outcomes of a step.
const (
	// StepDone means that the param has a value, that the precondition is met, that the payload is
	// built, or that the action has run.
	StepDone = "done"
	// StepDefault means that the param has its default.
	StepDefault = "default"
	// StepAbsent means that an optional param has no value. Expressions read it as null.
	StepAbsent = "absent"
	// StepUnmet means that the precondition is not met.
	StepUnmet = "unmet"
	// StepSkipped means that the gate of the step is false, or that a payload it uses was skipped.
	StepSkipped = "skipped"
	// StepFailed means that the step has failed. Error has the error.
	StepFailed = "failed"
	// StepDiscarded means that the API has discarded the report, because it has a later report.
	StepDiscarded = "discarded"
	// StepNotReached means that an earlier step ended the phase.
	StepNotReached = "not reached"
)

// Step records a param, a captured value, a precondition, a payload or an action.
type Step struct {
	Name string `json:"name"`
	// Source describes the source of the value.
	Source  string `json:"source,omitempty"`
	Outcome string `json:"outcome"`
	// When is the gate of a payload or an action.
	When  *resources.Gate `json:"when,omitempty"`
	Value any             `json:"value,omitempty"`
	Call  *Call           `json:"call,omitempty"`
	// Captured, Conditions and Expression are the results of a precondition.
	Captured   []Step           `json:"captured,omitempty"`
	Conditions []ConditionTrace `json:"conditions,omitempty"`
	Expression *resources.Gate  `json:"expression,omitempty"`
	// Reason is the reason why an action was skipped, if the gate is not the reason.
	Reason string `json:"reason,omitempty"`
	Error  string `json:"error,omitempty"`
}

// Call records one call of the task file, including all its attempts.
type Call struct {
	Method string `json:"method"`
	URL    string `json:"url,omitempty"`
	// Status is the HTTP status of the response. It is 0 if there was no response.
	Status int `json:"status"`
}

// ConditionTrace records one condition of a precondition.
type ConditionTrace struct {
	Field    string `json:"field"`
	Operator string `json:"operator"`
	Met      bool   `json:"met"`
	Value    any    `json:"value,omitempty"`
	Error    string `json:"error,omitempty"`
}

// ReportTrace records the framework's own report.
type ReportTrace struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Outcome is done, discarded or failed. If it is failed, Error is set.
	Outcome string `json:"outcome"`
	Error   string `json:"error,omitempty"`
}

// Acknowledgments of an event.
const (
	// AckDone means that the event is done.
	AckDone = "done"
	// AckRedeliver means that the broker delivers the event again.
	AckRedeliver = "again"
	// AckPoison means that the event becomes a dead letter.
	AckPoison = "poison"
)

// Reasons why a whole event was skipped, in addition to an unmet precondition.
const (
	// ReasonGone means that the resource does not exist in the API.
	ReasonGone = "the resource does not exist"
	// ReasonStale means that the API has a later generation than the event.
	ReasonStale = "the resource has a later generation than the event"
)

// ReasonUnchanged is the reason why a requeued event has sent no calls.
const ReasonUnchanged = "its calls would repeat those of the event before"

// ResultTrace records the result of the event.
type ResultTrace struct {
	Status Status `json:"status"`
	// Phase is the phase that failed. It is empty if no phase has failed.
	Phase Phase  `json:"phase,omitempty"`
	Error string `json:"error,omitempty"`
	// Reason is the reason why the whole event was skipped, or why its calls were not sent.
	Reason string `json:"reason,omitempty"`
	// Event is done, again or poison.
	Event string `json:"event"`
}
