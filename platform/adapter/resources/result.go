// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"context"
	"errors"
	"fmt"

	"github.com/hyperfleet/hyperfleet/platform/adapter/gates"
	"github.com/hyperfleet/hyperfleet/platform/cel"
)

// Operation is an operation on an entry's object.
type Operation string

// Operations on objects.
const (
	None     Operation = "none"
	Created  Operation = "create"
	Applied  Operation = "apply"
	Patched  Operation = "patch"
	Recreate Operation = "recreate"
	Deleted  Operation = "delete"
	Detached Operation = "detach"
)

// Reasons of outcomes, in addition to the reasons of gates.
const (
	// ReasonEarlierFailed means that the entry was not written because an earlier entry has failed.
	ReasonEarlierFailed = "EarlierFailed"
	// ReasonOwnerMissing means that the owner of the object does not exist.
	ReasonOwnerMissing = "OwnerMissing"
	// ReasonManifest means that the manifest can't be rendered or is invalid.
	ReasonManifest = "ManifestInvalid"
	// ReasonLeftover means that the object is no longer rendered.
	ReasonLeftover = "NotRendered"
	// ReasonDiscovery means that the discovery of the objects has failed.
	ReasonDiscovery = "DiscoveryFailed"
)

// Gate records the evaluation of one gate.
type Gate struct {
	// Gate is the name of the gate, for example when or lifecycle.delete.when.
	Gate       string `json:"gate"`
	Expression string `json:"expression"`
	// Value is true, false or error.
	Value string `json:"value"`
	// Inputs are the variables that the expression reads.
	Inputs []string `json:"inputs,omitempty"`
	Error  string   `json:"error,omitempty"`
}

// EvaluateGate evaluates a gate. It returns the value and a record of the evaluation for the trace. The error
// contains the gate's name.
func EvaluateGate(
	ctx context.Context, name string, expression *cel.Program, vars map[string]any,
) (isOpen bool, gate Gate, err error) {
	holds, err := expression.EvalBool(ctx, vars)
	gate = Gate{
		Gate: name, Expression: expression.String(), Value: gates.ValueOf(holds, err).String(), Inputs: expression.Variables(),
	}

	if err != nil {
		gate.Error = err.Error()

		return false, gate, fmt.Errorf("%s: %w", name, err)
	}

	return holds, gate, nil
}

// Outcome is the result of one entry.
type Outcome struct {
	// Resource is the entry's name.
	Resource string `json:"name"`
	// Outcome is act, skip or fail.
	Outcome gates.Outcome `json:"outcome"`
	// Operation is the last operation. If the entry has failed, the operation may have failed.
	Operation Operation `json:"operation"`
	// Reason is the reason of the gates or of the error, in one word.
	Reason string `json:"reason"`
	// Message is a message for people. It may be empty, and contains no secrets.
	Message string `json:"message,omitempty"`
	// Object is the current object: Kind.group namespace/name.
	Object string `json:"object,omitempty"`
	// Pending is true if a deletion was requested and is not done. A later event continues.
	Pending bool `json:"pending,omitempty"`
	// Outdated is true if the entry has not failed, and its object does not have the content of the manifest, because
	// a gate has prevented the apply.
	Outdated bool `json:"outdated,omitempty"`
	// Pruned are the names of the earlier versions that were deleted.
	Pruned []string `json:"pruned,omitempty"`
	// Path is the path of the last decision: the questions and their answers. Gates are the gates on
	// this path.
	Path  []gates.Step `json:"path,omitempty"`
	Gates []Gate       `json:"gates,omitempty"`
	// Err is nil unless the entry has failed. Its class is one of kit/errclass. Error is its text.
	Err   error  `json:"-"`
	Error string `json:"error,omitempty"`
}

func (o *Outcome) setFailure(reason string, err error) {
	o.Outcome, o.Reason, o.Err = gates.Fail, reason, err
	o.Error, o.Message = err.Error(), err.Error()
}

// Result is the result of all entries.
type Result struct {
	// Outcomes has one outcome for each entry, in the order of the task file.
	Outcomes []Outcome
	// Objects are the final objects as CEL reads them (resources.NAME). The caller must not change
	// them, because they are shared with caches.
	Objects map[string]any
}

// Err joins the errors of all failed outcomes. It returns nil if there are none.
func (r Result) Err() error {
	var all []error

	for _, outcome := range r.FailedOutcomes() {
		all = append(all, fmt.Errorf("resource %s: %w", outcome.Resource, outcome.Err))
	}

	return errors.Join(all...)
}

// FailedOutcomes returns the outcomes with an error.
func (r Result) FailedOutcomes() []Outcome {
	var failed []Outcome

	for _, outcome := range r.Outcomes {
		if outcome.Err != nil {
			failed = append(failed, outcome)
		}
	}

	return failed
}
