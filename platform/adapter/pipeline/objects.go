// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"slices"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
)

func (r *run) runResources(ctx context.Context) {
	if len(r.p.Task.Resources) == 0 {
		return
	}

	// The calls of the task file may not have returned the event's resource.
	if r.earlier != nil {
		r.recordResource(r.event.Generation, false)
	} else if !r.hasResource {
		if err := r.readResource(ctx); err != nil {
			r.recordFailure(PhaseResources, "", err)

			return
		}
	}

	if r.isResourceMissing || r.isOutdated() {
		return
	}

	result, err := r.p.resources(ctx, resources.Input{
		Task: r.p.Task, Vars: r.vars, Clients: r.clients(), Stamper: r.p.stamper,
		ResourceID: r.event.ResourceID, Generation: r.event.Generation, Deleting: r.isResourceDeleting,
		ReadGeneration: r.readGeneration, Generations: r.p.generations, Kinds: r.p.Kinds, Clock: r.p.Clock, Log: r.log(),
	})
	r.result.Resources, r.result.Trace.Resources = result, result.Outcomes

	if err = errors.Join(err, result.Err()); err == nil {
		if step, pending := r.findPending(result); pending != nil {
			r.recordFailure(PhaseResources, step, pending)
		}

		return
	}

	step := ""
	if failed := result.FailedOutcomes(); len(failed) > 0 {
		step = failed[0].Resource
	}

	r.recordFailure(PhaseResources, step, err)
	r.isFailureTransient = shouldRedeliver(result, err)
}

// shouldRedeliver reports whether at least one failed entry may succeed when the event is handled again.
func shouldRedeliver(result resources.Result, err error) bool {
	failed := result.FailedOutcomes()
	if len(failed) == 0 {
		return isRetryable(err)
	}

	return slices.ContainsFunc(failed, func(o resources.Outcome) bool { return isRetryable(o.Err) })
}

// findPending returns an error if a resource that is not being deleted waits for the deletion of an object, because
// the object that it needs does not exist then. A later event creates it.
func (r *run) findPending(result resources.Result) (string, error) {
	for _, outcome := range result.Outcomes {
		if outcome.Pending && !r.isResourceDeleting {
			return outcome.Resource, errclass.New(errclass.Permanent, outcome.Reason,
				"resource %s: %s is being deleted; the adapter creates it again when it is gone", outcome.Resource, outcome.Object)
		}
	}

	return "", nil
}

// adapterVariable returns the value of the variable adapter: the identity of the adapter and the current result
// of the event. resourcesSkipped is true if a precondition is not met. The gate when of an entry does not set
// it.
func (r *run) adapterVariable() map[string]any {
	failures, outcomes := map[string]any{}, map[string]any{}
	out := map[string]any{
		"name": r.p.Deployment.Adapter.Name, "version": r.p.Deployment.Adapter.Version, "frameworkVersion": r.p.FrameworkVersion,
		"executionStatus": "success", "resourcesSkipped": r.skipReason != "", "skipReason": r.skipReason,
		"errorReason": "", "errorMessage": "", "executionError": nil,
		"resourceErrors": failures, "resourceOutcomes": outcomes, "resourcesApplied": true,
	}

	if err := r.result.Failure; err != nil {
		out["executionStatus"], out["errorReason"], out["errorMessage"] = "failed", phaseReason(r.result.Phase), shortenError(err)
		out["executionError"] = map[string]any{"phase": string(r.result.Phase), "step": r.failedStep, "message": shortenError(err)}
	}

	for i := range r.result.Resources.Outcomes {
		outcome := &r.result.Resources.Outcomes[i]
		outcomes[outcome.Resource] = map[string]any{
			"operation": string(outcome.Operation), "reason": outcome.Reason, "outdated": outcome.Outdated, "message": outcome.Message,
		}

		if outcome.Outdated || outcome.Err != nil {
			out["resourcesApplied"] = false
		}

		if outcome.Err != nil {
			failures[outcome.Resource] = shortenError(outcome.Err)
		}
	}

	return out
}
