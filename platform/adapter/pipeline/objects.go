// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/hyperfleet/hyperfleet/platform/adapter/gates"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/cel"
)

// resources runs the resources phase.
func (r *run) resources(ctx context.Context) {
	if len(r.p.Task.Resources) == 0 {
		return
	}

	// No call of the task file may have shown it.
	if !r.answered {
		if err := r.ask(ctx); err != nil {
			r.fail(PhaseResources, "", err)

			return
		}
	}

	if r.gone || r.outdated() {
		return
	}

	r.vars["adapter"] = r.adapter()

	result, err := r.p.resources(ctx, resources.Input{
		Task: r.p.Task, Vars: r.vars, Clients: r.p.Clients, Stamper: r.p.stamper,
		ResourceID: r.about.id, Generation: r.about.generation, Deleting: r.deleting,
		Seen: r.p.seen, Clock: r.p.Clock, Log: r.p.Log,
	})
	r.result.Resources = result
	r.trace(result)

	if err = errors.Join(err, result.Err()); err == nil {
		return
	}

	step := ""
	if failed := result.Failed(); len(failed) > 0 {
		step = failed[0].Resource
	}

	r.fail(PhaseResources, step, err)
	r.transient = again(result, err)
}

// again: one entry that may do better next time is enough.
func again(result resources.Result, err error) bool {
	failed := result.Failed()
	if len(failed) == 0 {
		return mayPass(err)
	}

	return slices.ContainsFunc(failed, func(o resources.Outcome) bool { return mayPass(o.Err) })
}

// trace writes down what was decided about each entry.
func (r *run) trace(result resources.Result) {
	for i := range result.Outcomes {
		outcome := &result.Outcomes[i]
		line := ResourceTrace{
			Name: outcome.Resource, Outcome: string(outcome.Decision.Outcome), Operation: string(outcome.Operation),
			Reason: outcome.Reason, Message: outcome.Message, Object: outcome.Object, Pending: outcome.Pending,
			Pruned: outcome.Pruned,
		}

		if outcome.Err != nil {
			line.Outcome, line.Error = string(gates.Fail), outcome.Err.Error()
		}

		entry := r.entry(outcome.Resource)

		for _, step := range outcome.Decision.Path {
			said := StepTrace{Question: step.Question, Answer: step.Answer}

			if entry != nil {
				about := asked(entry, step, outcome.Decision)
				if len(about) == 0 && strings.HasSuffix(step.Question, "when") {
					said.Answer = "not set"
				}

				line.Gates = append(line.Gates, about...)
			}

			line.Path = append(line.Path, said)
		}

		r.result.Trace.Resources = append(r.result.Trace.Resources, line)
	}
}

func (r *run) entry(name string) *task.Resource {
	for i := range r.p.Task.Resources {
		if r.p.Task.Resources[i].Name == name {
			return &r.p.Task.Resources[i]
		}
	}

	return nil
}

// asked gives the expressions that a question of the decision tree is about.
func asked(entry *task.Resource, step gates.Step, decision gates.Decision) []GateTrace {
	one := func(gate string, expression *cel.Program) []GateTrace {
		if expression == nil {
			return nil
		}

		return []GateTrace{{Gate: gate, Expression: expression.String(), Value: step.Answer, Inputs: expression.Variables()}}
	}

	switch step.Question {
	case "when":
		return one("when", entry.When)
	case "lifecycle.detach.when":
		return one(step.Question, entry.Detach)
	case "lifecycle.delete.when":
		return one(step.Question, entry.Delete)
	case "lifecycle.recreate.when":
		return one(step.Question, entry.Recreate)
	case "lifecycle.apply.when":
		return one(step.Question, entry.Apply)
	}

	if !strings.Contains(step.Question, "lifecycle.patch") {
		return nil
	}

	var out []GateTrace

	for i := range entry.Patches {
		gate := one("lifecycle.patch["+strconv.Itoa(i)+"].when", entry.Patches[i].When)
		if len(gate) > 0 && decision.Has(gates.Patch) {
			// The question is about all of them; those that hold are among the actions.
			gate[0].Value = strconv.FormatBool(slices.Contains(decision.Actions, gates.Action{Verb: gates.Patch, Index: i}))
		}

		out = append(out, gate...)
	}

	return out
}

func stale(result resources.Result) bool {
	return slices.ContainsFunc(result.Outcomes, func(o resources.Outcome) bool {
		return o.Reason == string(gates.ReasonStale)
	})
}

// adapter is the variable adapter: who the adapter is, and how the event went so far. A
// when of an entry that is false is no reason for resourcesSkipped: that is about
// preconditions alone.
func (r *run) adapter() map[string]any {
	out := map[string]any{
		"name": r.p.Deployment.Adapter.Name, "version": r.p.Deployment.Adapter.Version, "frameworkVersion": r.p.FrameworkVersion,
		"executionStatus": "success", "resourcesSkipped": r.skipped != "", "skipReason": r.skipped,
		"errorReason": "", "errorMessage": "", "executionError": nil,
		"resourceErrors": map[string]any{}, "resourceOutcomes": map[string]any{},
	}

	if err := r.result.Failure; err != nil {
		out["executionStatus"], out["errorReason"], out["errorMessage"] = "failed", reason(r.result.Phase), short(err)
		out["executionError"] = map[string]any{"phase": string(r.result.Phase), "step": r.step, "message": short(err)}
	}

	failures, outcomes := map[string]any{}, map[string]any{}

	for i := range r.result.Resources.Outcomes {
		outcome := &r.result.Resources.Outcomes[i]
		outcomes[outcome.Resource] = map[string]any{"operation": string(outcome.Operation), "reason": outcome.Reason}

		if outcome.Err != nil {
			failures[outcome.Resource] = short(outcome.Err)
		}
	}

	out["resourceErrors"], out["resourceOutcomes"] = failures, outcomes

	return out
}
