// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hyperfleet/hyperfleet/platform/adapter/gates"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/cel"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
)

const recreateGate = "lifecycle.recreate.when"

// decide evaluates the gates, walks the decision tree and writes the decision to the outcome. It returns an error if
// it can't find out whether the event is stale.
func (r *run) decide(ctx context.Context, e *newEntry, out *Outcome) (gates.Decision, error) {
	if err := r.confirmIfNewer(ctx, e); err != nil {
		return gates.Decision{}, err
	}

	evaluated, errs := map[string][]Gate{}, map[string]error{}

	evaluate := func(question, name string, program *cel.Program) gates.Value {
		if program == nil {
			return gates.Unset
		}

		result, gate, err := EvaluateGate(ctx, name, program, r.vars)
		if question == recreateGate && errors.Is(err, cel.ErrNoSuchKey) {
			// An object that does not have the field, such as a new Job without conditions, is not replaced.
			gate.Value, err = gates.False.String(), nil
		}

		evaluated[question] = append(evaluated[question], gate)
		errs[question] = errors.Join(errs[question], err)

		return gates.ValueOf(result, err)
	}
	gate := func(name string, program *cel.Program) gates.Value { return evaluate(name, name, program) }

	state := gates.State{
		Object: e.objects.state, ResourceDeleting: r.in.Deleting, HasRetention: e.Retention != nil, PatchOnly: e.Manifest == nil,
		Detach: gate("lifecycle.detach.when", e.Detach), Delete: gate("lifecycle.delete.when", e.Delete),
		When: gate("when", e.When), Apply: gate("lifecycle.apply.when", e.Apply),
	}

	state.Stale = r.isStale

	if r.hasFailed {
		state.When = gates.False
	}

	// The tree asks these gates only about an existing object. Most of them would fail without one, and an error takes longer.
	if state.Object != gates.Absent {
		state.Recreate = gate(recreateGate, e.Recreate)

		for i, patch := range e.Patches {
			name := fmt.Sprintf("lifecycle.patch[%d].when", i)
			state.Patch = append(state.Patch, evaluate("any of lifecycle.patch[].when", name, patch.When))
		}
	}

	state.Content = gates.Changed
	e.gates = state

	decision := gates.Decide(state)
	if decision.HasAction(gates.Apply) && e.objects.state == gates.Managed {
		state.Content = r.compareContent(ctx, e)
		decision = gates.Decide(state)
	}

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

	return decision, nil
}

// confirmIfNewer asks the API whether the event is stale, if the entry's object is newer than the event. If the event is not
// stale (the database of the API was restored from a backup), the current versions are chosen again.
func (r *run) confirmIfNewer(ctx context.Context, e *newEntry) error {
	isNewer := len(e.objects.versions) > 0 && appliedGeneration(e.objects.current) > r.in.Generation
	if r.isConfirmed || !isNewer {
		return nil
	}

	// The manifest itself may set a generation that is higher than the event's. Then the object is not newer.
	if e.objects.state == gates.Managed && e.Manifest != nil && r.compareContent(ctx, e) == gates.Current {
		return nil
	}

	if err := r.confirmEvent(ctx); err != nil || r.isStale {
		return err
	}

	return r.chooseVersionsAgain()
}

// chooseVersionsAgain sets the current version of each entry. Once the API has confirmed the event, this is the version of
// the event's generation, and not one of a later generation that the API no longer has.
func (r *run) chooseVersionsAgain() error {
	for _, e := range r.entries {
		if len(e.objects.versions) == 0 {
			continue
		}

		if err := r.setObjects(e, newManaged(r.currentVersion(e.objects.versions), e.objects.versions)); err != nil {
			return err
		}
	}

	return nil
}

// compareContent compares the content that the current object was applied with, as its marks prove it, with the
// manifest. If the manifest can't be rendered, it returns Changed, so that the apply returns the error.
func (r *run) compareContent(ctx context.Context, e *newEntry) gates.Content {
	object, owner, err := r.renderContent(ctx, e)
	if err != nil || r.in.Stamper.SetMarks(object, owner) != nil {
		return gates.Changed
	}

	live := e.objects.current

	switch r.in.Stamper.Compare(live, object, owner) {
	case stamp.Proven:
		return gates.Current
	case stamp.Unsigned:
		// Another version would run a Job once more, and it would not differ from what an earlier release has created.
		if e.Retention != nil {
			return gates.Current
		}

		return gates.Changed
	case stamp.Different, stamp.Edited:
	}

	if appliedGeneration(live) < r.in.Generation {
		return gates.Older
	}

	return gates.Changed
}

// addMessage adds the error or the message of a decision to the outcome. gateErr is the error of the last gate.
func (r *run) addMessage(e *newEntry, decision gates.Decision, gateErr error, out *Outcome) {
	switch {
	case decision.Reason == gates.ReasonGate:
		out.setFailure(string(gates.ReasonGate), newPermanentError(string(gates.ReasonGate), "evaluate %w", gateErr))
	case decision.Outcome == gates.Fail:
		out.setFailure(string(decision.Reason), r.newNotManagedError(e, string(decision.Reason)))
	case decision.Reason == gates.ReasonStale:
		out.Message = "the resource in the API has another generation than the event"
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
func (r *run) newNotManagedError(e *newEntry, reason string) error {
	return newPermanentError(reason,
		"%s exists and is not managed: %s; the adapter does not change it. To hand it over, delete it with "+
			"kubectl delete %s --cascade=orphan, which keeps its dependents, and the adapter creates its own; "+
			"otherwise rename one of the two",
		transport.RefTo(e.objects.current), e.objects.reason, kubectlName(e.objects.current))
}

// kubectlName returns the arguments with which kubectl finds an object.
func kubectlName(object *unstructured.Unstructured) string {
	kind := object.GroupVersionKind().GroupKind()
	name := strings.ToLower(kind.Kind)

	if kind.Group != "" {
		name += "." + kind.Group
	}

	name += " " + object.GetName()
	if namespace := object.GetNamespace(); namespace != "" {
		name += " -n " + namespace
	}

	return name
}
