// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conditions

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/cel"
)

// Bounds of mapped conditions.
const (
	// RuleCostLimit bounds one expression of a rule.
	RuleCostLimit = 10_000
	// MaxReason is how long a reason may be; a longer one is an error of its rule.
	MaxReason = 256
	// MaxMessage is how long a message may be; the rest of it is cut off.
	MaxMessage = 2048

	ruleTimeout = 250 * time.Millisecond
)

// ErrRule is wrapped by errors of Apply: nothing may be stored then.
var ErrRule = errors.New("rule for a condition failed")

// Rules make the mapped conditions of a kind.
type Rules struct {
	rules []rule
}

type rule struct {
	conditionType                 string
	when, status, reason, message *cel.Program
}

// Compile checks the rules of a kind. Its error names all that is wrong with them.
func Compile(declared []platform.MappedCondition, clk clock.PassiveClock) (*Rules, error) {
	env, err := cel.New(cel.Options{
		Variables: cel.Dyn("statuses", "resource"), Clock: clk, CostLimit: RuleCostLimit, Timeout: ruleTimeout,
	})
	if err != nil {
		return nil, err
	}

	out := &Rules{}

	var problems []error

	for i, one := range declared {
		compiled := rule{conditionType: one.Type}

		for _, part := range []struct {
			name   string
			source string
			into   **cel.Program
			how    func(string) (*cel.Program, error)
		}{
			{"when", one.When.Expression, &compiled.when, env.CompileBool},
			{"output.status", one.Output.Status.Expression, &compiled.status, env.Compile},
			{"output.reason", one.Output.Reason.Expression, &compiled.reason, env.Compile},
			{"output.message", one.Output.Message.Expression, &compiled.message, env.Compile},
		} {
			program, err := part.how(part.source)
			if err != nil {
				problems = append(problems, fmt.Errorf("conditions[%d] (%s): %s.expression: %w", i, one.Type, part.name, err))
			}

			*part.into = program
		}

		out.rules = append(out.rules, compiled)
	}

	return out, errors.Join(problems...)
}

// Apply gives the mapped conditions. Resource is the resource as the API answers it.
func (r *Rules) Apply(ctx context.Context, in Input, resource map[string]any) ([]openapi.ResourceCondition, error) {
	if len(r.rules) == 0 {
		return nil, nil
	}

	newest := in.UpdatedTime
	for _, status := range in.Statuses {
		newest = later(newest, status.LastReportTime)
	}

	vars := map[string]any{"statuses": statusValues(in.Statuses), "resource": resource}

	var out []openapi.ResourceCondition

	for _, one := range r.rules {
		condition, holds, err := one.apply(ctx, vars)
		if err != nil {
			return nil, fmt.Errorf("%w: condition %s: %w", ErrRule, one.conditionType, err)
		}

		if !holds {
			continue
		}

		condition.ObservedGeneration = in.Generation
		condition.LastUpdatedTime, condition.LastTransitionTime = newest, newest
		out = append(out, in.settle(condition))
	}

	return out, nil
}

func (r rule) apply(ctx context.Context, vars map[string]any) (openapi.ResourceCondition, bool, error) {
	out := openapi.ResourceCondition{Type: r.conditionType}

	holds, err := r.when.Bool(ctx, vars)
	if err != nil || !holds {
		return out, false, err
	}

	for _, part := range []struct {
		name    string
		program *cel.Program
		into    *string
	}{{"status", r.status, &out.Status}, {"reason", r.reason, &out.Reason}, {"message", r.message, &out.Message}} {
		value, err := part.program.Eval(ctx, vars)
		if err != nil {
			return out, false, fmt.Errorf("output.%s: %w", part.name, err)
		}

		text, ok := value.(string)
		if !ok {
			return out, false, fmt.Errorf("output.%s: the expression has to give a text", part.name)
		}

		*part.into = text
	}

	switch {
	case strings.EqualFold(out.Status, True):
		out.Status = True
	case strings.EqualFold(out.Status, False):
		out.Status = False
	default:
		return out, false, errors.New("output.status: the expression has to give True or False")
	}

	if len(out.Reason) > MaxReason {
		return out, false, fmt.Errorf("output.reason: the text has more than %d bytes", MaxReason)
	}

	// It is cut between two characters.
	if len(out.Message) > MaxMessage {
		out.Message = strings.ToValidUTF8(out.Message[:MaxMessage], "")
	}

	return out, true, nil
}

// statusValues are the reports as expressions see them: conditions that are Unknown are
// left out.
func statusValues(statuses []openapi.AdapterStatus) []any {
	out := make([]any, 0, len(statuses))

	for _, status := range statuses {
		conditions := []any{}

		for _, one := range status.Conditions {
			if one.Status == Unknown {
				continue
			}

			value := map[string]any{"type": one.Type, "status": one.Status, "reason": one.Reason, "message": one.Message}
			if one.LastTransitionTime != nil {
				value["last_transition_time"] = one.LastTransitionTime.UTC().Format(time.RFC3339Nano)
			}

			conditions = append(conditions, value)
		}

		value := map[string]any{
			"adapter": status.Adapter, "observed_generation": int64(status.ObservedGeneration), "conditions": conditions,
			"last_report_time": status.LastReportTime.UTC().Format(time.RFC3339Nano),
		}

		if status.Data != nil {
			value["data"] = *status.Data
		}

		if status.Metadata != nil {
			value["metadata"] = *status.Metadata
		}

		out = append(out, value)
	}

	return out
}
