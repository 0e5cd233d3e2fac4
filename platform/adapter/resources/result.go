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

// Operation is what was done to an entry's object.
type Operation string

// Operations.
const (
	None     Operation = "none"
	Created  Operation = "create"
	Applied  Operation = "apply"
	Patched  Operation = "patch"
	Recreate Operation = "recreate"
	Deleted  Operation = "delete"
	Detached Operation = "detach"
)

// Reasons beside those of gates.
const (
	// ReasonEarlierFailed: writing an earlier entry has failed, so this one was not
	// written.
	ReasonEarlierFailed = "EarlierFailed"
	// ReasonOwnerMissing: the object that is to be the owner is not there.
	ReasonOwnerMissing = "OwnerMissing"
	// ReasonManifest: the manifest can't be rendered or sent as it is.
	ReasonManifest = "ManifestInvalid"
	// ReasonDiscovery: looking for the objects has failed.
	ReasonDiscovery = "DiscoveryFailed"
)

// Gate is one expression that decided something.
type Gate struct {
	// Gate names it: when, lifecycle.delete.when.
	Gate       string `json:"gate"`
	Expression string `json:"expression"`
	// Value is true, false or error.
	Value string `json:"value"`
	// Inputs are the variables that the expression reads.
	Inputs []string `json:"inputs,omitempty"`
	Error  string   `json:"error,omitempty"`
}

// Ask evaluates a gate. Its error names the gate.
func Ask(ctx context.Context, name string, expression *cel.Program, vars map[string]any) (bool, Gate, error) {
	holds, err := expression.Bool(ctx, vars)
	gate := Gate{
		Gate: name, Expression: expression.String(), Value: gates.Of(holds, err).String(), Inputs: expression.Variables(),
	}

	if err != nil {
		gate.Error = err.Error()

		return false, gate, fmt.Errorf("%s: %w", name, err)
	}

	return holds, gate, nil
}

// Outcome is what became of one entry, and why.
type Outcome struct {
	// Resource is the entry's name.
	Resource string `json:"name"`
	// Outcome is act, skip or fail.
	Outcome gates.Outcome `json:"outcome"`
	// Operation that was done; for a failure, the one that was tried.
	Operation Operation `json:"operation"`
	// Reason is one word: the gates', or the error's.
	Reason string `json:"reason"`
	// Message is for people; it may be empty. No secrets.
	Message string `json:"message,omitempty"`
	// Object names the current object: Kind.group namespace/name.
	Object string `json:"object,omitempty"`
	// Pending says that a deletion was asked for and is not done: a later event goes on.
	Pending bool `json:"pending,omitempty"`
	// Pruned are the names of earlier versions that were removed.
	Pruned []string `json:"pruned,omitempty"`
	// Path are the questions on the way to the last decision, with their answers, and Gates
	// the entry's expressions that those were about.
	Path  []gates.Step `json:"path,omitempty"`
	Gates []Gate       `json:"gates,omitempty"`
	// Err is nil unless the entry has failed; kit/errclass has its class. Error is its text.
	Err   error  `json:"-"`
	Error string `json:"error,omitempty"`
}

// fail makes the outcome a failure.
func (o *Outcome) fail(reason string, err error) {
	o.Outcome, o.Reason, o.Err = gates.Fail, reason, err
	o.Error, o.Message = err.Error(), err.Error()
}

// Result is what became of all entries.
type Result struct {
	// Outcomes are one for each entry, in their order.
	Outcomes []Outcome
	// Objects are the objects as CEL sees them (resources.NAME), after everything was
	// done. They are shared with caches and must not be changed.
	Objects map[string]any
}

// Err joins the entries' errors; nil if none has failed.
func (r Result) Err() error {
	var all []error

	for _, outcome := range r.Failed() {
		all = append(all, fmt.Errorf("resource %s: %w", outcome.Resource, outcome.Err))
	}

	return errors.Join(all...)
}

// Failed gives the outcomes that have failed.
func (r Result) Failed() []Outcome {
	var failed []Outcome

	for _, outcome := range r.Outcomes {
		if outcome.Err != nil {
			failed = append(failed, outcome)
		}
	}

	return failed
}
