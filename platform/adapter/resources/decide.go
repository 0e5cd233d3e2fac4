// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/hyperfleet/hyperfleet/platform/adapter/gates"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/cel"
)

// decide evaluates the gates, walks the decision tree and writes the decision to the outcome.
func (r *run) decide(ctx context.Context, e *newEntry, out *Outcome) gates.Decision {
	evaluated, errs := map[string][]Gate{}, map[string]error{}

	evaluate := func(question, name string, program *cel.Program) gates.Value {
		if program == nil {
			return gates.Unset
		}

		result, gate, err := EvaluateGate(ctx, name, program, r.vars)
		evaluated[question] = append(evaluated[question], gate)
		errs[question] = errors.Join(errs[question], err)

		return gates.ValueOf(result, err)
	}
	gate := func(name string, program *cel.Program) gates.Value { return evaluate(name, name, program) }

	state := gates.State{
		Object: e.objects.state, ResourceDeleting: r.in.Deleting, HasRetention: e.Retention != nil, PatchOnly: e.Manifest == nil,
		Detach: gate("lifecycle.detach.when", e.Detach), Delete: gate("lifecycle.delete.when", e.Delete),
		When: gate("when", e.When), Recreate: gate("lifecycle.recreate.when", e.Recreate), Apply: gate("lifecycle.apply.when", e.Apply),
	}

	if r.hasFailed || r.isStale {
		state.When = gates.False
	}

	for i, patch := range e.Patches {
		name := fmt.Sprintf("lifecycle.patch[%d].when", i)
		state.Patch = append(state.Patch, evaluate("any of lifecycle.patch[].when", name, patch.When))
	}

	if e.objects.current != nil {
		state.Generation = cmp.Compare(appliedGeneration(e.objects.current), r.in.Generation)
	}

	decision := gates.Decide(state)
	*out = Outcome{
		Resource: e.Name, Outcome: decision.Outcome, Operation: None, Reason: string(decision.Reason), Path: decision.Path,
	}

	for _, step := range decision.Path {
		for _, gate := range evaluated[step.Question] {
			if gate.Gate == step.Question {
				gate.Value = step.Answer // after a failure, when counts as false, whatever its value
			}

			out.Gates = append(out.Gates, gate)
		}
	}

	r.addMessage(e, decision, errs[decision.Path[len(decision.Path)-1].Question], out)

	return decision
}

// addMessage adds the error or the message of a decision to the outcome. gateErr is the error of the last gate.
func (r *run) addMessage(e *newEntry, decision gates.Decision, gateErr error, out *Outcome) {
	switch {
	case decision.Reason == gates.ReasonGate:
		out.setFailure(string(gates.ReasonGate), newPermanentError(string(gates.ReasonGate), "evaluate %w", gateErr))
	case decision.Outcome == gates.Fail:
		out.setFailure(string(decision.Reason), r.newNotManagedError(e))
	case decision.Reason == gates.ReasonWhen && r.isStale:
		out.Reason, out.Message = string(gates.ReasonStale), "a later generation was handled before"
	case decision.Reason == gates.ReasonWhen && r.hasFailed:
		out.Reason, out.Message = ReasonEarlierFailed, "an earlier entry has failed"
	case decision.Reason == gates.ReasonDeletionPending:
		out.Pending = true
	case decision.Reason == gates.ReasonNotManaged, decision.Reason == gates.ReasonDetached, decision.Reason == gates.ReasonCreate:
		out.Message = e.objects.reason
	}
}

// newNotManagedError returns the error of an existing object that is not managed. The error describes how
// to hand the object over to the adapter.
func (r *run) newNotManagedError(e *newEntry) error {
	return newPermanentError(string(gates.ReasonNotManaged),
		"%s exists and is not managed: %s; the adapter does not change it. To hand it over, delete it "+
			"(kubectl delete --cascade=orphan keeps its dependents), and the adapter creates its own; otherwise rename one of the two",
		transport.RefTo(e.objects.current), e.objects.reason)
}
