// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/cel"
)

// evaluatePreconditions evaluates the preconditions in their order, and stops at the first that is not
// met or fails.
func (r *run) evaluatePreconditions(ctx context.Context) {
	for i := range r.p.Task.Preconditions {
		precondition := &r.p.Task.Preconditions[i]
		step := Step{Name: precondition.Name, Outcome: StepNotReached}

		if r.canContinue() && r.skipReason == "" {
			isMet, err := r.evaluatePrecondition(ctx, precondition, &step)
			r.recordStep(PhasePreconditions, "precondition", &step, err)

			if err == nil && !isMet {
				step.Outcome = StepUnmet
				r.skipReason = "precondition " + precondition.Name + " is not met"
			}
		}

		r.result.Trace.Preconditions = append(r.result.Trace.Preconditions, step)
	}
}

// recordStep records the result of a step. An error fails the phase, unless the step has found that the
// resource does not exist (r.isResourceMissing).
func (r *run) recordStep(phase Phase, stepType string, step *Step, err error) {
	if err == nil {
		step.Outcome = StepDone

		return
	}

	step.Outcome, step.Error = StepFailed, err.Error()

	if !r.isResourceMissing {
		r.recordFailure(phase, step.Name, fmt.Errorf("%s %s: %w", stepType, step.Name, err))
	}
}

// evaluatePrecondition calls the API if the precondition has a call, and returns whether all conditions and
// the expression are met. It evaluates all conditions even if one is not met, so that the step has the
// result of each.
func (r *run) evaluatePrecondition(ctx context.Context, precondition *task.Precondition, step *Step) (isMet bool, err error) {
	if precondition.APICall != nil {
		response, err := r.fetch(ctx, precondition.APICall, step)
		if err != nil {
			return false, err
		}

		r.vars[precondition.Name] = response

		if err := r.captureValues(ctx, precondition, response, step); err != nil {
			return false, err
		}
	}

	isMet = true

	for _, condition := range precondition.Conditions {
		holds, err := condition.IsMet(r.vars)
		compared := ConditionTrace{Field: condition.Field.String(), Operator: condition.Operator, Met: holds}

		if r.p.IncludeValues {
			compared.Value, _ = condition.Field.Lookup(r.vars)
		}

		if err != nil {
			compared.Error = err.Error()
		}

		step.Conditions = append(step.Conditions, compared)

		if err != nil {
			return false, err
		}

		isMet = isMet && holds
	}

	if precondition.Expression != nil {
		holds, gate, err := resources.EvaluateGate(ctx, "expression", precondition.Expression, r.vars)
		step.Expression = &gate

		if err != nil {
			return false, err
		}

		isMet = isMet && holds
	}

	r.logLine(ctx, precondition.Name, precondition.Log)

	return isMet, nil
}

// captureValues sets the variables of the precondition's captures from the response.
func (r *run) captureValues(ctx context.Context, precondition *task.Precondition, response any, step *Step) error {
	vars := maps.Clone(r.vars)
	vars["response"] = response

	for _, capture := range precondition.Capture {
		captured := Step{Name: capture.Name, Source: capture.Field, Outcome: StepDone}

		var (
			value any
			err   error
		)

		if capture.Expression != nil {
			captured.Source = "expression: " + capture.Expression.String()
			value, err = capture.Expression.Eval(ctx, vars)
		} else {
			value = cel.Dig(response, capture.Field)
		}

		switch {
		case err != nil && (capture.Default == nil || isHardError(err)):
			captured.Outcome, captured.Error = StepFailed, err.Error()
			step.Captured = append(step.Captured, captured)

			return fmt.Errorf("capture %s: %w", capture.Name, err)
		case value == nil && capture.Default != nil:
			value, captured.Outcome = capture.Default, StepDefault
		case value == nil:
			captured.Outcome = StepAbsent
		}

		r.vars[capture.Name], vars[capture.Name] = value, value

		if r.p.IncludeValues {
			captured.Value = value
		}

		step.Captured = append(step.Captured, captured)
	}

	return nil
}

// isHardError reports whether an error does not mean that a value is absent: a retryable error, or an
// expression that exceeds a limit.
func isHardError(err error) bool {
	return isRetryable(err) || errors.Is(err, cel.ErrCostLimit) || errors.Is(err, cel.ErrTimeout)
}

// logLine writes a log line of the task file. If the line can't be rendered, logLine writes a warning
// instead and does not fail the step.
func (r *run) logLine(ctx context.Context, step string, line *task.Log) {
	if line == nil || !r.log().Enabled(ctx, line.Level) {
		return
	}

	log := r.log().With(
		"event", r.event.ID, "resourceId", r.event.ResourceID, "kind", r.event.Kind, "generation", r.event.Generation)

	text, err := line.Message.Render(r.vars)
	if err != nil {
		log.WarnContext(ctx, "failed to render log line of task file", "step", step, "error", err)

		return
	}

	log.Log(ctx, line.Level, "log line of task file", "step", step, "text", text)
}
