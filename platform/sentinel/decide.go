// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/ext"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/platform/cel"
)

// Reasons of events, which message_data may say and metrics count.
const (
	// ReasonCreated and ReasonChanged: no adapter has reacted to the generation yet.
	ReasonCreated = "created"
	ReasonChanged = "changed"
	// ReasonNotReconciled and ReasonDrift are the two cadences.
	ReasonNotReconciled = "not_reconciled"
	ReasonDrift         = "drift"
	// ReasonDecision: the expression of message_decision holds.
	ReasonDecision = "message_decision"
	// ReasonStarted: an adapter that follows the API itself has begun to.
	ReasonStarted = "started"
)

// decider says whether an event is due; why is one of the reasons, empty if not.
type decider interface {
	decide(ctx context.Context, e *entry, now time.Time) (why string, err error)
	// byReport says whether what holds may hold no more because of a report that says what the
	// one before it said: the change feed does not tell of those.
	byReport(e *entry, why string) bool
	// whole says whether entries need the resource with all its fields.
	whole() bool
	// types are the conditions that it asks for by name.
	types() []string
}

// cadence is the default decision.
type cadence struct {
	notReconciled, reconciled time.Duration
	// anew has all sent once by each process, and each generation whoever has reacted to it.
	anew bool
}

// byReport: who has sent an event itself counts from that.
func (cadence) byReport(e *entry, why string) bool {
	return e.sentTime.IsZero() && (why == ReasonNotReconciled || why == ReasonDrift)
}

func (cadence) whole() bool     { return false }
func (cadence) types() []string { return nil }

// decide holds for a generation that no adapter has reacted to, once; then, and else, for
// a resource that nobody said anything of for as long as its cadence, counted from the
// newest of: what Reconciled stands on, and the last event.
func (c cadence) decide(_ context.Context, e *entry, now time.Time) (string, error) {
	sent := e.sentGeneration == e.generation

	if c.anew && e.sentTime.IsZero() {
		return ReasonStarted, nil
	}

	// What one adapter has reacted to is news to another that hears of it later.
	if !sent && (c.anew || !e.conditioned || e.generation > e.observed) {
		if e.generation == 1 {
			return ReasonCreated, nil
		}

		return ReasonChanged, nil
	}

	since := e.sentTime
	if e.conditioned && e.updated.After(since) {
		since = e.updated
	}

	limit, why := c.notReconciled, ReasonNotReconciled
	if !e.conditioned || e.reconciled && e.observed == e.generation || e.aside == e.generation {
		limit, why = c.reconciled, ReasonDrift
	}

	if now.Sub(since) < limit {
		return "", nil
	}

	return why, nil
}

// decision is message_decision.
type decision struct {
	result *cel.Program
	asked  []string
}

func (decision) byReport(*entry, string) bool { return true }

func (decision) whole() bool       { return true }
func (d decision) types() []string { return d.asked }

func (d decision) decide(ctx context.Context, e *entry, now time.Time) (string, error) {
	resource, err := e.resource()
	if err != nil {
		return "", err
	}

	holds, err := d.result.Bool(ctx, map[string]any{"resource": resource, "now": now, conditionsVar: conditionsOf(resource)})
	if err != nil || !holds {
		return "", err
	}

	return ReasonDecision, nil
}

var errName = errors.New("write a letter, then letters, digits and '_'")

const (
	conditionsVar  = "hyperfleet_conditions"
	conditionCalls = "hyperfleet_condition"
)

// environment is that of decisions: resource, now, condition(type). Types that are asked
// for by name are added to asked.
func environment(clk clock.PassiveClock, asked *[]string) (*cel.Env, error) {
	condition := celgo.GlobalMacro("condition", 1,
		func(factory celgo.MacroExprFactory, _ ast.Expr, args []ast.Expr) (ast.Expr, *celgo.Error) {
			if args[0].Kind() == ast.LiteralKind {
				if name, ok := args[0].AsLiteral().Value().(string); ok && !slices.Contains(*asked, name) {
					*asked = append(*asked, name)
				}
			}

			return factory.NewCall(conditionCalls, factory.NewIdent(conditionsVar), args[0]), nil
		})

	return cel.New(cel.Options{
		Clock: clk,
		Variables: []cel.Variable{
			{Name: "resource"}, {Name: "now", Type: celgo.TimestampType},
			{Name: conditionsVar, Type: celgo.MapType(celgo.StringType, celgo.DynType)},
		},
		Extra: []celgo.EnvOption{
			ext.Bindings(), celgo.Macros(condition),
			celgo.Function(conditionCalls, celgo.Overload(conditionCalls+"_map_string",
				[]*celgo.Type{celgo.MapType(celgo.StringType, celgo.DynType), celgo.StringType}, celgo.DynType,
				celgo.BinaryBinding(find))),
		},
	})
}

// find gives the condition, or the zero of one.
func find(conditions, name ref.Val) ref.Val {
	of, ok := conditions.(traits.Mapper)
	if !ok {
		return types.MaybeNoSuchOverloadErr(conditions)
	}

	if found, ok := of.Find(name); ok {
		return found
	}

	text, _ := name.Value().(string)

	return types.DefaultTypeAdapter.NativeToValue(zeroCondition(text))
}

// zeroCondition is what an absent condition is to expressions.
func zeroCondition(name string) map[string]any {
	zero := time.Unix(0, 0).UTC()

	return map[string]any{
		"type": name, "status": "", "reason": "", "message": "", "observed_generation": int64(0),
		"created_time": zero, "last_updated_time": zero, "last_transition_time": zero,
	}
}

// conditionsOf are a resource's conditions by type; their times are times.
func conditionsOf(resource map[string]any) map[string]any {
	out := map[string]any{}

	status, _ := resource["status"].(map[string]any)
	list, _ := status["conditions"].([]any)

	for _, item := range list {
		one, _ := item.(map[string]any)

		name, ok := one["type"].(string)
		if !ok {
			continue
		}

		full := zeroCondition(name)

		for key, value := range one {
			full[key] = value

			if text, ok := value.(string); ok && strings.HasSuffix(key, "_time") {
				if parsed, err := time.Parse(time.RFC3339Nano, text); err == nil {
					full[key] = parsed
				}
			}
		}

		out[name] = full
	}

	return out
}

// compileDecision gives the configured decision; anew is of the default one.
func compileDecision(c *platform.Sentinel, anew bool, clk clock.PassiveClock) (decider, error) {
	if c.MessageDecision == nil {
		return cadence{notReconciled: c.MaxAgeNotReconciled, reconciled: c.MaxAgeReconciled, anew: anew}, nil
	}

	var asked []string

	env, err := environment(clk, &asked)
	if err != nil {
		return nil, err
	}

	var (
		before, after strings.Builder
		scope         = env
		problems      strictErrors
	)

	for i, param := range c.MessageDecision.Params {
		if !regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*$`).MatchString(param.Name) {
			problems.add(errName, "message_decision", "params", i, "name")

			continue
		}

		if _, err := scope.Compile(param.Expr); err != nil {
			problems.add(err, "message_decision", "params", i, "expr")

			continue
		}

		if scope, err = scope.Extend(cel.Variable{Name: param.Name}); err != nil {
			return nil, err
		}

		// A comment ends with its line.
		fmt.Fprintf(&before, "cel.bind(%s, (%s\n), ", param.Name, param.Expr)
		after.WriteString(")")
	}

	if _, err := scope.CompileBool(c.MessageDecision.Result); err != nil {
		problems.add(err, "message_decision", "result")
	}

	if err := errors.Join(problems...); err != nil {
		return nil, err
	}

	// Bound in one expression, params keep their types.
	result, err := env.CompileBool(before.String() + "(" + c.MessageDecision.Result + "\n)" + after.String())
	if err != nil {
		return nil, strictyaml.ErrorAt("message_decision", "%w", err)
	}

	return decision{result: result, asked: asked}, nil
}
