// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cel

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// Causes of an evaluation error, for errors.Is.
var (
	// ErrCostLimit means that the evaluation reached Options.CostLimit.
	ErrCostLimit = errors.New("the expression exceeds its cost limit")
	// ErrTimeout means that the evaluation reached Options.Timeout.
	ErrTimeout = errors.New("the expression exceeds its time limit")
	// ErrNoSuchKey means that the expression reads a key that its map does not have.
	ErrNoSuchKey = errors.New("no such key")
)

// Program is a compiled expression. It is safe for concurrent use.
type Program struct {
	source    string
	variables []string
	ast       *cel.Ast
	env       *Env
	program   cel.Program
	timeout   time.Duration
	// hasLoop is true if the expression has a loop. CEL checks the timeout only in loops.
	hasLoop bool
}

// String returns the text of the expression.
func (p *Program) String() string { return p.source }

// EvalError is the error of a failed evaluation. It contains no value.
type EvalError struct {
	// Line and Column are the position in the expression, from 1. Both are 0 if the position is unknown.
	Line, Column int
	Message      string
	cause        error
}

// Error returns the message, with line and column if they are known.
func (e *EvalError) Error() string {
	if e.Line == 0 {
		return "evaluate expression: " + e.Message
	}

	return fmt.Sprintf("evaluate expression: %d:%d: %s", e.Line, e.Column, e.Message)
}

// Unwrap returns ErrCostLimit, ErrTimeout, ErrNoSuchKey, the cause of the context's end, or nil.
func (e *EvalError) Unwrap() error { return e.cause }

// Eval evaluates the expression and returns its value as map[string]any, []any, string, int64,
// float64, json.Number, bool or nil. It converts a timestamp to an RFC 3339 string, a duration to a string such
// as 1m30s, a quantity to the string that an API server stores, such as 1k, and an optional to its
// value, or nil if the optional is empty. The error is an *EvalError.
func (p *Program) Eval(ctx context.Context, vars map[string]any) (any, error) {
	var (
		value ref.Val
		err   error
	)

	if p.hasLoop {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, p.timeout, ErrTimeout)

		defer cancel()

		value, _, err = p.program.ContextEval(ctx, vars)
	} else {
		value, _, err = p.program.Eval(vars)
	}

	if err != nil {
		return nil, p.redactError(ctx, err, vars)
	}

	out, err := toNative(value)
	if err != nil {
		return nil, &EvalError{Message: err.Error()}
	}

	return out, nil
}

// EvalBool evaluates the expression and returns an error if its value is not a bool.
func (p *Program) EvalBool(ctx context.Context, vars map[string]any) (bool, error) {
	value, err := p.Eval(ctx, vars)
	if err != nil {
		return false, err
	}

	result, ok := value.(bool)
	if !ok {
		typeName := newAdapter().NativeToValue(value).Type().TypeName()

		return false, &EvalError{Message: fmt.Sprintf("yields %s, want a bool", strings.TrimSuffix(typeName, "_type"))}
	}

	return result, nil
}

// Error texts of CEL that redactError explains.
const (
	noSuchKey      = "no such key"
	noSuchOverload = "no such overload"
	notIterable    = "expected iterable type"
)

// safeErrorTexts returns the beginnings of CEL's error texts that contain no value. redactError
// drops the text after them.
func safeErrorTexts() []string {
	return []string{
		noSuchKey, "no such attribute", noSuchOverload, notIterable, "no such field", "division by zero", "modulus by zero",
		"integer overflow", "unsigned integer overflow", "duration overflow", "timestamp overflow", "range error",
		"index out of bounds", "index out of range", "optional.none() dereference", "unsupported key type", "invalid argument",
		"got unexpected type", "type conversion error", "unexpected type", "no such type", "unsupported type conversion",
	}
}

// redactError converts an error of CEL to an EvalError without values. It keeps only the type of
// the error, and names that occur in the expression.
func (p *Program) redactError(ctx context.Context, err error, vars map[string]any) *EvalError {
	text := err.Error()

	if strings.Contains(text, "actual cost limit exceeded") {
		return &EvalError{Message: ErrCostLimit.Error(), cause: ErrCostLimit}
	}

	if ctx.Err() != nil {
		cause := context.Cause(ctx)

		return &EvalError{Message: cause.Error(), cause: cause}
	}

	out := &EvalError{Message: "a function rejected its arguments"}

	var functionErr *functionError
	if errors.As(err, &functionErr) {
		out.Message = functionErr.Error()
	} else if i := slices.IndexFunc(safeErrorTexts(), func(safe string) bool { return strings.Contains(text, safe) }); i >= 0 {
		out.Message = safeErrorTexts()[i]
		out.Message += p.findName(text)
	}

	nodeID := int64(0)

	if celErr, ok := errors.AsType[*types.Err](err); ok && celErr.NodeID() > 0 {
		nodeID = celErr.NodeID()

		location := p.ast.NativeRep().SourceInfo().GetStartLocation(nodeID)
		if location.Line() > 0 {
			out.Line, out.Column = location.Line(), location.Column()+1
		}
	}

	switch out.Message {
	case notIterable:
		out.Message = "want a list or a map" + p.explainTypes(ctx, vars, 0)
	case noSuchOverload:
		out.Message += p.explainTypes(ctx, vars, nodeID)
	}

	if strings.HasPrefix(out.Message, noSuchKey) {
		out.cause = ErrNoSuchKey
	}

	return out
}

var identifier = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*$`)

// findName returns ": NAME" if an error text ends in a name that occurs in the expression, and ""
// otherwise. For a missing key it adds how to read a key that may be absent.
func (p *Program) findName(text string) string {
	_, after, ok := strings.Cut(text, "no such ")
	if !ok {
		return ""
	}

	_, name, ok := strings.Cut(after, ": ")
	if !ok {
		return ""
	}

	if name = identifier.FindString(strings.TrimSpace(name)); name == "" {
		return ""
	}

	pattern, err := regexp.Compile(`\b` + name + `\b`)
	if err != nil || !pattern.MatchString(p.source) {
		return ""
	}

	if strings.Contains(text, noSuchKey) {
		if fleetName := fieldSpellings()[name]; fleetName != "" {
			return ": " + name + "; conditions of the fleet API have " + fleetName + "; if the key can be absent, write .?" + name
		}

		return ": " + p.findPath(name) + "; if the key can be absent, write .?" + name
	}

	return ": " + name
}

// fieldSpellings maps fields of Kubernetes conditions to the names of the same fields in the fleet API.
func fieldSpellings() map[string]string {
	return map[string]string{"lastTransitionTime": "last_transition_time", "observedGeneration": "observed_generation"}
}

// Variables returns the sorted names of the variables that the expression reads. The caller must
// not change the slice.
func (p *Program) Variables() []string { return p.variables }

// EvalConstant returns the value of an expression that reads neither variables nor the clock. It
// returns false for any other expression, and if the evaluation fails.
func (p *Program) EvalConstant() (value any, ok bool) {
	if len(p.Variables()) > 0 {
		return nil, false
	}

	readsClock := contains(p.ast, func(e ast.Expr) bool {
		return e.Kind() == ast.CallKind && slices.Contains([]string{"now", "conditionAge", "stableFor"}, e.AsCall().FunctionName())
	})
	if readsClock {
		return nil, false
	}

	value, err := p.Eval(context.Background(), map[string]any{})

	return value, err == nil
}

func contains(checked *cel.Ast, matches func(ast.Expr) bool) (found bool) {
	ast.PostOrderVisit(checked.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) { found = found || matches(e) }))

	return found
}
