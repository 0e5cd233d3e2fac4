// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

// Trace is what was done with one event, and why: every decision with the expression
// behind it. Values are in it only where Options.Values asks for them; they may be
// secrets.
type Trace struct {
	Event         EventTrace          `json:"event"`
	Params        []ParamTrace        `json:"params,omitempty"`
	Preconditions []PreconditionTrace `json:"preconditions,omitempty"`
	Resources     []ResourceTrace     `json:"resources,omitempty"`
	Payloads      []PayloadTrace      `json:"payloads,omitempty"`
	Actions       []ActionTrace       `json:"actions,omitempty"`
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

// ParamTrace is one param.
type ParamTrace struct {
	Name    string     `json:"name"`
	Source  string     `json:"source,omitempty"`
	Outcome string     `json:"outcome"`
	Value   any        `json:"value,omitempty"`
	Call    *CallTrace `json:"call,omitempty"`
	Error   string     `json:"error,omitempty"`
}

// CallTrace is one call of the task file, however often it was tried.
type CallTrace struct {
	Method string `json:"method"`
	URL    string `json:"url,omitempty"`
	// Status of the answer; 0 if there was none.
	Status int `json:"status"`
}

// PreconditionTrace is one precondition.
type PreconditionTrace struct {
	Name       string           `json:"name"`
	Outcome    string           `json:"outcome"`
	Call       *CallTrace       `json:"call,omitempty"`
	Captured   []ParamTrace     `json:"captured,omitempty"`
	Conditions []ConditionTrace `json:"conditions,omitempty"`
	Gate       *GateTrace       `json:"expression,omitempty"`
	Error      string           `json:"error,omitempty"`
}

// ConditionTrace is one condition of a precondition.
type ConditionTrace struct {
	Field    string `json:"field"`
	Operator string `json:"operator"`
	Met      bool   `json:"met"`
	Value    any    `json:"value,omitempty"`
	Error    string `json:"error,omitempty"`
}

// GateTrace is one expression that decided something.
type GateTrace struct {
	// Gate names it: when, lifecycle.delete.when.
	Gate       string `json:"gate"`
	Expression string `json:"expression"`
	// Value is true, false or error.
	Value string `json:"value"`
	// Inputs are the variables that the expression reads.
	Inputs []string `json:"inputs,omitempty"`
	Error  string   `json:"error,omitempty"`
}

// ResourceTrace is one entry of resources.
type ResourceTrace struct {
	Name string `json:"name"`
	// Outcome is act, skip or fail.
	Outcome string `json:"outcome"`
	// Operation is what was done, or tried: create, apply, patch, recreate, delete,
	// detach, none.
	Operation string `json:"operation"`
	Reason    string `json:"reason"`
	Message   string `json:"message,omitempty"`
	Object    string `json:"object,omitempty"`
	// Pending: a deletion was asked for and is not done.
	Pending bool     `json:"pending,omitempty"`
	Pruned  []string `json:"pruned,omitempty"`
	// Path are the questions on the way to the decision, with their answers.
	Path []StepTrace `json:"path,omitempty"`
	// Gates are the entry's expressions that were evaluated.
	Gates []GateTrace `json:"gates,omitempty"`
	Error string      `json:"error,omitempty"`
}

// StepTrace is one question of the decision tree (platform/adapter/gates).
type StepTrace struct {
	Question string `json:"question"`
	Answer   string `json:"answer"`
}

// PayloadTrace is one payload.
type PayloadTrace struct {
	Name    string     `json:"name"`
	Outcome string     `json:"outcome"`
	Gate    *GateTrace `json:"when,omitempty"`
	Value   any        `json:"value,omitempty"`
	Error   string     `json:"error,omitempty"`
}

// ActionTrace is one post action.
type ActionTrace struct {
	Name    string     `json:"name"`
	Outcome string     `json:"outcome"`
	Gate    *GateTrace `json:"when,omitempty"`
	Call    *CallTrace `json:"call,omitempty"`
	Reason  string     `json:"reason,omitempty"`
	Error   string     `json:"error,omitempty"`
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
