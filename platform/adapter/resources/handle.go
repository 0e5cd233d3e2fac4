// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/platform/adapter/gates"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/cel"
)

// maxTries is how often an entry is decided again because its object changes under our
// hands. After that the event is redelivered.
const maxTries = 3

// handle does what is to be done for one entry.
func (r *run) handle(ctx context.Context, i int) {
	e, out := r.entries[i], &r.result.Outcomes[i]

	var decision gates.Decision

	for tries := 0; ; {
		decision = r.decide(ctx, e, out)

		if decision.Outcome != gates.Act && (e.live || out.Err == nil && !out.Pending) {
			break
		}

		// Decided on what a cache had; what is written is decided on what is there. So is
		// what has failed, and whether a deletion still is not done: caches learn of late.
		if e.live {
			err := r.act(ctx, e, decision, out)
			if err == nil {
				break
			}

			tries++

			if !changed(err) || tries == maxTries {
				out.fail(errclass.Reason(err, string(decision.Reason)), err)

				break
			}
		}

		if err := r.discover(ctx, e, transport.Live); err != nil {
			out.fail(ReasonDiscovery, err)

			break
		}
	}

	if out.Reason == string(gates.ReasonUnchanged) {
		r.renew(ctx, e)
	}

	r.finish(ctx, e, decision, out)
}

// finish prunes, and says which object it was about.
func (r *run) finish(ctx context.Context, e *entry, decision gates.Decision, out *Outcome) {
	if out.Err == nil && decision.Has(gates.Prune) && !r.stale {
		if err := r.prune(ctx, e, out); err != nil {
			out.fail(errclass.Reason(err, string(gates.Prune)), err)
		}
	}

	if e.found.current != nil {
		out.Object = transport.RefTo(e.found.current).String()
	}

	if out.Err != nil && out.Operation != Deleted && out.Operation != Detached {
		r.failed = true
	}

	if out.Err == nil && out.Reason == string(gates.ReasonNotManaged) {
		r.in.Log.WarnContext(ctx, "resource is being deleted, its object is not managed and stays",
			"name", e.Name, "object", out.Object, "message", out.Message)
	}

	if out.Operation != None || len(out.Pruned) > 0 {
		words := []any{"name", e.Name, "operation", out.Operation, "reason", out.Reason, "object", out.Object}
		if out.Message != "" {
			words = append(words, "message", out.Message)
		}

		if len(out.Pruned) > 0 {
			words = append(words, "pruned", out.Pruned)
		}

		r.in.Log.InfoContext(ctx, "resource", words...)
	}
}

// changed tells errors that a look at what is there now answers.
func changed(err error) bool {
	return errors.Is(err, transport.ErrConflict) || errors.Is(err, transport.ErrExists) ||
		errors.Is(err, transport.ErrNotFound) && !errors.Is(err, transport.ErrNoKind)
}

// decide asks the gates and the tree, and writes down what they say.
func (r *run) decide(ctx context.Context, e *entry, out *Outcome) gates.Decision {
	asked, failed := map[string][]Gate{}, map[string]error{}

	ask := func(question, name string, program *cel.Program) gates.Value {
		if program == nil {
			return gates.Unset
		}

		yes, gate, err := Ask(ctx, name, program, r.vars)
		asked[question] = append(asked[question], gate)
		failed[question] = errors.Join(failed[question], err)

		return gates.Of(yes, err)
	}
	gate := func(name string, program *cel.Program) gates.Value { return ask(name, name, program) }

	state := gates.State{
		Found: e.found.state, DeleteEvent: r.in.Deleting, Retain: e.Retention != nil, PatchOnly: e.Manifest == nil,
		Detach: gate("lifecycle.detach.when", e.Detach), Delete: gate("lifecycle.delete.when", e.Delete),
		When: gate("when", e.When), Recreate: gate("lifecycle.recreate.when", e.Recreate), Apply: gate("lifecycle.apply.when", e.Apply),
	}

	if r.failed || r.stale {
		state.When = gates.False
	}

	for i, patch := range e.Patches {
		name := fmt.Sprintf("lifecycle.patch[%d].when", i)
		state.Patch = append(state.Patch, ask("any of lifecycle.patch[].when", name, patch.When))
	}

	if e.found.current != nil {
		state.Generation = cmp.Compare(generationOf(e.found.current), r.in.Generation)
	}

	decision := gates.Decide(state)
	*out = Outcome{
		Resource: e.Name, Outcome: decision.Outcome, Operation: None, Reason: string(decision.Reason), Path: decision.Path,
	}

	for _, step := range decision.Path {
		for _, gate := range asked[step.Question] {
			if gate.Gate == step.Question {
				gate.Value = step.Answer // when counts as false after a failure, whatever it gives
			}

			out.Gates = append(out.Gates, gate)
		}
	}

	r.explain(e, decision, failed[decision.Path[len(decision.Path)-1].Question], out)

	return decision
}

// explain adds words to a decision that writes nothing; why is the error of the last gate.
func (r *run) explain(e *entry, decision gates.Decision, why error, out *Outcome) {
	switch {
	case decision.Reason == gates.ReasonGate:
		out.fail(string(gates.ReasonGate), permanent(string(gates.ReasonGate), "evaluate %w", why))
	case decision.Outcome == gates.Fail:
		out.fail(string(decision.Reason), r.notManaged(e))
	case decision.Reason == gates.ReasonWhen && r.stale:
		out.Reason, out.Message = string(gates.ReasonStale), "a later generation was handled before"
	case decision.Reason == gates.ReasonWhen && r.failed:
		out.Reason, out.Message = ReasonEarlierFailed, "an earlier entry has failed"
	case decision.Reason == gates.ReasonDeletionPending:
		out.Pending = true
	case decision.Reason == gates.ReasonNotManaged, decision.Reason == gates.ReasonDetached, decision.Reason == gates.ReasonCreate:
		out.Message = e.found.why
	}
}

// notManaged names the object that is in the way, and how to hand it over.
func (r *run) notManaged(e *entry) error {
	return permanent(string(gates.ReasonNotManaged),
		"%s is there and not managed: %s; it is left alone. To hand it over, delete it "+
			"(kubectl delete --cascade=orphan leaves what it owns): the adapter then makes its own; else rename one of the two",
		transport.RefTo(e.found.current), e.found.why)
}

// act does what was decided, bound to what was found.
func (r *run) act(ctx context.Context, e *entry, decision gates.Decision, out *Outcome) error {
	if decision.Has(gates.Patch) {
		return r.patch(ctx, e, decision, out)
	}

	switch verb := decision.Actions[0].Verb; verb {
	case gates.Detach:
		return r.detach(ctx, e, out)
	case gates.Delete:
		return r.delete(ctx, e, out)
	case gates.Recreate:
		return r.recreate(ctx, e, out)
	case gates.Apply:
		return r.apply(ctx, e, out)
	default:
		return fmt.Errorf("do %s: there is no such action", verb)
	}
}
