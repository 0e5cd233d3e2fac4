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

// preconditions looks at them in their order, up to the first that is unmet or fails.
func (r *run) preconditions(ctx context.Context) {
	for i := range r.p.Task.Preconditions {
		one := &r.p.Task.Preconditions[i]
		step := Step{Name: one.Name, Outcome: StepNotReached}

		if r.going() && r.skipped == "" {
			met, err := r.precondition(ctx, one, &step)
			r.ended(PhasePreconditions, "precondition", &step, err)

			if err == nil && !met {
				step.Outcome = StepUnmet
				r.skipped = "precondition " + one.Name + " is not met"
			}
		}

		r.result.Trace.Preconditions = append(r.result.Trace.Preconditions, step)
	}
}

// ended writes down how a step has ended. The failure of one that finds the resource gone is
// none.
func (r *run) ended(phase Phase, what string, step *Step, err error) {
	if err == nil {
		step.Outcome = StepDone

		return
	}

	step.Outcome, step.Error = StepFailed, err.Error()

	if !r.gone {
		r.fail(phase, step.Name, fmt.Errorf("%s %s: %w", what, step.Name, err))
	}
}

func (r *run) precondition(ctx context.Context, one *task.Precondition, step *Step) (bool, error) {
	if one.APICall != nil {
		answer, err := r.fetch(ctx, one.APICall, step)
		if err != nil {
			return false, err
		}

		r.vars[one.Name] = answer

		if err := r.capture(ctx, one, answer, step); err != nil {
			return false, err
		}
	}

	met := true

	for _, condition := range one.Conditions {
		holds, err := condition.Met(r.vars)
		line := Compared{Field: condition.Field.String(), Operator: condition.Operator, Met: holds}

		if r.p.Values {
			line.Value, _ = condition.Field.Lookup(r.vars)
		}

		if err != nil {
			line.Error = err.Error()
		}

		step.Conditions = append(step.Conditions, line)

		if err != nil {
			return false, err
		}

		met = met && holds
	}

	if one.Expression != nil {
		holds, gate, err := resources.Ask(ctx, "expression", one.Expression, r.vars)
		step.Expression = &gate

		if err != nil {
			return false, err
		}

		met = met && holds
	}

	r.say(ctx, one.Name, one.Log)

	return met, nil
}

// capture takes values out of an answer.
func (r *run) capture(ctx context.Context, one *task.Precondition, answer any, step *Step) error {
	for _, capture := range one.Capture {
		line := Step{Name: capture.Name, Source: capture.Field, Outcome: StepDone}

		var (
			value any
			err   error
		)

		if capture.Expression != nil {
			line.Source = "expression: " + capture.Expression.String()
			vars := maps.Clone(r.vars)
			vars["response"] = answer
			value, err = capture.Expression.Eval(ctx, vars)
		} else {
			value = cel.Dig(answer, capture.Field)
		}

		switch {
		case err != nil && (capture.Default == nil || hard(err)):
			line.Outcome, line.Error = StepFailed, err.Error()
			step.Captured = append(step.Captured, line)

			return fmt.Errorf("capture %s: %w", capture.Name, err)
		case value == nil && capture.Default != nil:
			value, line.Outcome = capture.Default, StepDefault
		case value == nil:
			line.Outcome = StepAbsent
		}

		r.vars[capture.Name] = value

		if r.p.Values {
			line.Value = value
		}

		step.Captured = append(step.Captured, line)
	}

	return nil
}

// hard errors are no sign of a value that is not there.
func hard(err error) bool {
	return mayPass(err) || errors.Is(err, cel.ErrCost) || errors.Is(err, cel.ErrTime)
}

// say writes a line of the task file's own. One that can't be rendered is said so: a line
// of the log fails nothing.
func (r *run) say(ctx context.Context, step string, line *task.Log) {
	if line == nil || !r.log.Enabled(ctx, line.Level) {
		return
	}

	text, err := line.Message.Render(r.vars)
	if err != nil {
		r.log.WarnContext(ctx, "log line of the task file can't be rendered", "step", step, "error", err)

		return
	}

	r.log.Log(ctx, line.Level, "task file says", "step", step, "text", text)
}
