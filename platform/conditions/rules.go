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

// Limits of mapped conditions.
const (
	// RuleCostLimit is the CEL cost limit of one expression of a rule.
	RuleCostLimit = 10_000
	// MaxReason is the maximum length of a reason in bytes. A longer reason is an error of its
	// rule.
	MaxReason = 256
	// MaxMessage is the maximum length of a message in bytes. A longer message is cut.
	MaxMessage = 2048

	ruleTimeout = 250 * time.Millisecond
)

// ErrRule is wrapped by errors of Apply. If Apply fails, the caller must not store the resource.
var ErrRule = errors.New("rule for a condition failed")

// Rules are the compiled rules for the mapped conditions of a kind.
type Rules struct {
	rules []rule
}

type rule struct {
	conditionType                 string
	when, status, reason, message *cel.Program
}

// Compile compiles the rules of a kind. The error names every problem of the rules.
func Compile(declared []platform.MappedCondition, clk clock.PassiveClock) (*Rules, error) {
	env, err := cel.New(cel.Options{
		Variables: cel.NewDynVariables("statuses", "resource"), Clock: clk, CostLimit: RuleCostLimit, Timeout: ruleTimeout,
	})
	if err != nil {
		return nil, err
	}

	out := &Rules{}

	var problems []error

	for i, mapped := range declared {
		compiled := rule{conditionType: mapped.Type}

		for _, part := range []struct {
			name    string
			source  string
			target  **cel.Program
			compile func(string) (*cel.Program, error)
		}{
			{"when", mapped.When.Expression, &compiled.when, env.CompileBool},
			{"output.status", mapped.Output.Status.Expression, &compiled.status, env.Compile},
			{"output.reason", mapped.Output.Reason.Expression, &compiled.reason, env.Compile},
			{"output.message", mapped.Output.Message.Expression, &compiled.message, env.Compile},
		} {
			program, err := part.compile(part.source)
			if err != nil {
				problems = append(problems, fmt.Errorf("conditions[%d] (%s): %s.expression: %w", i, mapped.Type, part.name, err))
			}

			*part.target = program
		}

		out.rules = append(out.rules, compiled)
	}

	return out, errors.Join(problems...)
}

// Apply returns the mapped conditions of a resource. The argument resource is the resource as the
// API returns it.
func (r *Rules) Apply(ctx context.Context, in Input, resource map[string]any) ([]openapi.ResourceCondition, error) {
	if len(r.rules) == 0 {
		return nil, nil
	}

	newest := in.UpdatedTime
	for _, status := range in.Statuses {
		newest = maxTime(newest, status.LastReportTime)
	}

	vars := map[string]any{"statuses": statusValues(in.Statuses), "resource": resource}

	var out []openapi.ResourceCondition

	for _, rule := range r.rules {
		condition, applies, err := rule.apply(ctx, vars)
		if err != nil {
			return nil, fmt.Errorf("%w: condition %s: %w", ErrRule, rule.conditionType, err)
		}

		if !applies {
			continue
		}

		condition.ObservedGeneration = in.Generation
		condition.LastUpdatedTime, condition.LastTransitionTime = newest, newest
		out = append(out, in.withPreviousTimes(condition))
	}

	return out, nil
}

// apply returns the condition of a rule, and false if the rule's when is false. It returns an error if the
// output is not valid, and cuts a message that is too long.
func (r rule) apply(ctx context.Context, vars map[string]any) (condition openapi.ResourceCondition, applies bool, err error) {
	out := openapi.ResourceCondition{Type: r.conditionType}

	holds, err := r.when.EvalBool(ctx, vars)
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
			return out, false, fmt.Errorf("output.%s: the expression has to return a string", part.name)
		}

		*part.into = text
	}

	switch {
	case strings.EqualFold(out.Status, True):
		out.Status = True
	case strings.EqualFold(out.Status, False):
		out.Status = False
	default:
		return out, false, errors.New("output.status: the expression has to return True or False")
	}

	if len(out.Reason) > MaxReason {
		return out, false, fmt.Errorf("output.reason: the reason has more than %d bytes", MaxReason)
	}

	// ToValidUTF8 removes a character that the cut has split.
	if len(out.Message) > MaxMessage {
		out.Message = strings.ToValidUTF8(out.Message[:MaxMessage], "")
	}

	return out, true, nil
}

// statusValues returns the reports as expressions see them, without the conditions that are
// Unknown.
func statusValues(statuses []openapi.AdapterStatus) []any {
	out := make([]any, 0, len(statuses))

	for _, status := range statuses {
		conditions := []any{}

		for _, condition := range status.Conditions {
			if condition.Status == Unknown {
				continue
			}

			value := map[string]any{
				"type": condition.Type, "status": condition.Status, "reason": condition.Reason, "message": condition.Message,
			}
			if condition.LastTransitionTime != nil {
				value["last_transition_time"] = condition.LastTransitionTime.UTC().Format(time.RFC3339Nano)
			}

			conditions = append(conditions, value)
		}

		value := map[string]any{
			"adapter": status.Adapter, "observed_generation": int64(status.ObservedGeneration), "conditions": conditions,
			"last_report_time": status.LastReportTime.UTC().Format(time.RFC3339Nano),
		}

		if status.Data != nil {
			value["data"] = map[string]any(*status.Data)
		}

		if status.Metadata != nil {
			value["metadata"] = map[string]any(*status.Metadata)
		}

		out = append(out, value)
	}

	return out
}
