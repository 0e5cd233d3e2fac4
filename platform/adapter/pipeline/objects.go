// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"slices"

	"github.com/hyperfleet/hyperfleet/platform/adapter/gates"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
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
		ResourceID: r.about.ResourceID, Generation: r.about.Generation, Deleting: r.deleting,
		Seen: r.p.seen, Clock: r.p.Clock, Log: r.p.Log,
	})
	r.result.Resources, r.result.Trace.Resources = result, result.Outcomes

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

func stale(result resources.Result) bool {
	return slices.ContainsFunc(result.Outcomes, func(o resources.Outcome) bool {
		return o.Reason == string(gates.ReasonStale)
	})
}

// adapter is the variable adapter: who the adapter is, and how the event went so far. A
// when of an entry that is false is no reason for resourcesSkipped: that is about
// preconditions alone.
func (r *run) adapter() map[string]any {
	failures, outcomes := map[string]any{}, map[string]any{}
	out := map[string]any{
		"name": r.p.Deployment.Adapter.Name, "version": r.p.Deployment.Adapter.Version, "frameworkVersion": r.p.FrameworkVersion,
		"executionStatus": "success", "resourcesSkipped": r.skipped != "", "skipReason": r.skipped,
		"errorReason": "", "errorMessage": "", "executionError": nil,
		"resourceErrors": failures, "resourceOutcomes": outcomes,
	}

	if err := r.result.Failure; err != nil {
		out["executionStatus"], out["errorReason"], out["errorMessage"] = "failed", reason(r.result.Phase), short(err)
		out["executionError"] = map[string]any{"phase": string(r.result.Phase), "step": r.step, "message": short(err)}
	}

	for i := range r.result.Resources.Outcomes {
		outcome := &r.result.Resources.Outcomes[i]
		outcomes[outcome.Resource] = map[string]any{"operation": string(outcome.Operation), "reason": outcome.Reason}

		if outcome.Err != nil {
			failures[outcome.Resource] = short(outcome.Err)
		}
	}

	return out
}
