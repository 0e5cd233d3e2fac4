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

// Reasons of events. They are available in message_data and are a label of metrics.
const (
	// ReasonCreated and ReasonChanged mean that no adapter has reacted to the generation yet.
	ReasonCreated = "created"
	ReasonChanged = "changed"
	// ReasonRestored means that the resource may have gone back to an earlier state, for example because the
	// database was restored.
	ReasonRestored = "restored"
	// ReasonNotReconciled and ReasonDrift mean that a resync interval has passed.
	ReasonNotReconciled = "not_reconciled"
	ReasonDrift         = "drift"
	// ReasonDecision means that the expression of message_decision is true.
	ReasonDecision = "message_decision"
	// ReasonStarted means that an adapter that follows the API itself has started.
	ReasonStarted = "started"
)

// enqueueDue evaluates resources and enqueues those whose event is due. Stale resources are read
// first.
func (s *Sentinel) enqueueDue(ids ...string) {
	if !s.lease.IsHeld() {
		s.metrics.skipped.WithLabelValues(skippedStandby).Add(float64(len(ids)))

		return
	}

	for _, id := range ids {
		if s.shouldEnqueue(id) {
			s.queue.Add(id)
		}
	}

	select {
	case s.recheck <- struct{}{}:
	default:
	}
}

func (s *Sentinel) shouldEnqueue(id string) bool {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()

	e, now := s.index.entries[id], s.clock.Now()

	switch {
	case e == nil, e.isQueued:
		return false
	case e.isSending:
		e.needsRecheck = true

		return false
	case now.Before(e.retryTime):
		s.metrics.skipped.WithLabelValues(skippedBackoff).Inc()

		return false
	}

	reason, ok := s.evaluate(e, now)
	if ok && s.decider.canChangeByReport(e, reason) && !s.isFresh(e, now) {
		s.index.stale[id] = true

		return false
	}

	e.isQueued = ok

	return ok
}

// isFresh returns true if the known state of the resource is so recent that it does not have to be
// read again: it was requested after the last event of this process, and received less than one
// poll interval ago.
func (s *Sentinel) isFresh(e *entry, now time.Time) bool {
	return e.requestTime.After(e.sentTime) && now.Sub(e.responseTime) < s.conf.PollInterval
}

// evaluate returns the reason of a due event, and false if no event is due. It also returns false
// if an expression fails. The caller holds the index's mu.
func (s *Sentinel) evaluate(e *entry, now time.Time) (reason string, isDue bool) {
	reason, err := s.decider.decide(context.Background(), e, now)

	switch {
	case err != nil:
		s.metrics.expressionErrors.Inc()
		s.metrics.skipped.WithLabelValues(skippedError).Inc()
		s.log.Error("could not evaluate message_decision: send no event", "id", e.id, "error", err)
	case reason == "":
		s.metrics.skipped.WithLabelValues(skippedNotDue).Inc()
	}

	return reason, err == nil && reason != ""
}

// decider decides whether an event is due. The reason is empty if no event is due.
type decider interface {
	decide(ctx context.Context, e *entry, now time.Time) (reason string, err error)
	// canChangeByReport returns true if a report that repeats the previous one can make a due event
	// unnecessary. The change feed does not contain such reports.
	canChangeByReport(e *entry, reason string) bool
	// needsResource returns true if entries need the resource with all its fields.
	needsResource() bool
	// conditionTypes returns the condition types that the decision names.
	conditionTypes() []string
}

// defaultDecision sends an event for each change, and then in resync intervals.
type defaultDecision struct {
	notReconciledInterval, reconciledInterval time.Duration
	// If shouldResendAll is true, each process sends an event for every resource once, and for
	// every generation even if an adapter has reacted to it.
	shouldResendAll bool
}

// canChangeByReport returns false if this process has sent an event itself, because the interval
// then counts from that event.
func (defaultDecision) canChangeByReport(e *entry, reason string) bool {
	return e.sentTime.IsZero() && (reason == ReasonNotReconciled || reason == ReasonDrift)
}

func (defaultDecision) needsResource() bool      { return false }
func (defaultDecision) conditionTypes() []string { return nil }

// decide returns a reason once for a generation that no adapter has reacted to. Otherwise it
// returns a reason when the resync interval has passed since the newest report that Reconciled
// depends on, and since the last event.
func (c defaultDecision) decide(_ context.Context, e *entry, now time.Time) (string, error) {
	wasSent := e.sentGeneration == e.generation

	if c.shouldResendAll && e.sentTime.IsZero() {
		return ReasonStarted, nil
	}

	if e.isRestored {
		return ReasonRestored, nil
	}

	// An adapter that starts later still has to handle a generation that another one reacted to.
	if !wasSent && (c.shouldResendAll || !e.hasReconciled || e.generation > e.observedGeneration) {
		if e.generation == 1 {
			return ReasonCreated, nil
		}

		return ReasonChanged, nil
	}

	since := e.sentTime
	if e.hasReconciled && e.updatedTime.After(since) {
		since = e.updatedTime
	}

	limit, reason := c.notReconciledInterval, ReasonNotReconciled
	if !e.hasReconciled || e.isReconciled && e.observedGeneration == e.generation || e.excludedGeneration == e.generation {
		limit, reason = c.reconciledInterval, ReasonDrift
	}

	if now.Sub(since) < limit {
		return "", nil
	}

	return reason, nil
}

// celDecision is message_decision.
type celDecision struct {
	result     *cel.Program
	namedTypes []string
}

func (celDecision) canChangeByReport(*entry, string) bool { return true }

func (celDecision) needsResource() bool        { return true }
func (d celDecision) conditionTypes() []string { return d.namedTypes }

func (d celDecision) decide(ctx context.Context, e *entry, now time.Time) (string, error) {
	resource, err := e.resource()
	if err != nil {
		return "", err
	}

	holds, err := d.result.EvalBool(ctx, map[string]any{"resource": resource, "now": now, conditionsVar: conditionsByType(resource)})
	if err != nil || !holds {
		return "", err
	}

	return ReasonDecision, nil
}

var errParamName = errors.New("write a letter, then letters, digits and '_'")

const (
	conditionsVar     = "hyperfleet_conditions"
	conditionFunction = "hyperfleet_condition"
)

// newEnvironment returns the CEL environment of decisions with resource, now and condition(type).
// It adds the condition types that an expression names as literals to namedTypes.
func newEnvironment(clk clock.PassiveClock, namedTypes *[]string) (*cel.Env, error) {
	condition := celgo.GlobalMacro("condition", 1,
		func(factory celgo.MacroExprFactory, _ ast.Expr, args []ast.Expr) (ast.Expr, *celgo.Error) {
			if args[0].Kind() == ast.LiteralKind {
				if name, ok := args[0].AsLiteral().Value().(string); ok && !slices.Contains(*namedTypes, name) {
					*namedTypes = append(*namedTypes, name)
				}
			}

			return factory.NewCall(conditionFunction, factory.NewIdent(conditionsVar), args[0]), nil
		})

	return cel.New(cel.Options{
		Clock: clk,
		Variables: []cel.Variable{
			{Name: "resource"}, {Name: "now", Type: celgo.TimestampType},
			{Name: conditionsVar, Type: celgo.MapType(celgo.StringType, celgo.DynType)},
		},
		ExtraOptions: []celgo.EnvOption{
			ext.Bindings(), celgo.Macros(condition),
			celgo.Function(conditionFunction, celgo.Overload(conditionFunction+"_map_string",
				[]*celgo.Type{celgo.MapType(celgo.StringType, celgo.DynType), celgo.StringType}, celgo.DynType,
				celgo.BinaryBinding(findCondition))),
		},
	})
}

// findCondition returns the condition with the name, or a zero condition if there is none.
func findCondition(conditions, name ref.Val) ref.Val {
	byType, ok := conditions.(traits.Mapper)
	if !ok {
		return types.MaybeNoSuchOverloadErr(conditions)
	}

	if found, ok := byType.Find(name); ok {
		return found
	}

	text, _ := name.Value().(string)

	return types.DefaultTypeAdapter.NativeToValue(newZeroCondition(text))
}

// newZeroCondition returns the value that expressions see for an absent condition.
func newZeroCondition(name string) map[string]any {
	zero := time.Unix(0, 0).UTC()

	return map[string]any{
		"type": name, "status": "", "reason": "", "message": "", "observed_generation": int64(0),
		"created_time": zero, "last_updated_time": zero, "last_transition_time": zero,
	}
}

// conditionsByType returns the conditions of a resource by type. Their times are time.Time.
func conditionsByType(resource map[string]any) map[string]any {
	out := map[string]any{}

	status, _ := resource["status"].(map[string]any)
	list, _ := status["conditions"].([]any)

	for _, item := range list {
		condition, _ := item.(map[string]any)

		name, ok := condition["type"].(string)
		if !ok {
			continue
		}

		full := newZeroCondition(name)

		for key, value := range condition {
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

// compileDecision returns the configured decision. shouldResendAll only affects the default
// decision.
func compileDecision(c *platform.Sentinel, shouldResendAll bool, clk clock.PassiveClock) (decider, error) {
	if c.MessageDecision == nil {
		return defaultDecision{
			notReconciledInterval: c.MaxAgeNotReconciled, reconciledInterval: c.MaxAgeReconciled, shouldResendAll: shouldResendAll,
		}, nil
	}

	var namedTypes []string

	env, err := newEnvironment(clk, &namedTypes)
	if err != nil {
		return nil, err
	}

	var (
		prefix, suffix strings.Builder
		scope          = env
		problems       strictyaml.KeyErrors
	)

	for i, param := range c.MessageDecision.Params {
		if !regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*$`).MatchString(param.Name) {
			problems.Add(errParamName, "message_decision", "params", i, "name")

			continue
		}

		if _, err := scope.Compile(param.Expr); err != nil {
			problems.Add(err, "message_decision", "params", i, "expr")

			continue
		}

		if scope, err = scope.Extend(cel.Variable{Name: param.Name}); err != nil {
			return nil, err
		}

		// The expression can end with a comment, so the parenthesis needs its own line.
		fmt.Fprintf(&prefix, "cel.bind(%s, (%s\n), ", param.Name, param.Expr)
		suffix.WriteString(")")
	}

	_, err = scope.CompileBool(c.MessageDecision.Result)
	problems.Add(err, "message_decision", "result")

	if err := problems.Err(); err != nil {
		return nil, err
	}

	// Params keep their types because they are bound in the same expression.
	result, err := env.CompileBool(prefix.String() + "(" + c.MessageDecision.Result + "\n)" + suffix.String())
	if err != nil {
		return nil, strictyaml.ErrorAt("message_decision", "%w", err)
	}

	return celDecision{result: result, namedTypes: namedTypes}, nil
}
