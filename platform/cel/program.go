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
)

// Errors of an evaluation that callers may tell apart.
var (
	// ErrCost is an expression that did too much.
	ErrCost = errors.New("the expression costs too much")
	// ErrTime is an expression that took too long.
	ErrTime = errors.New("the expression takes too long")
)

// Program is an expression that was checked. It is safe for concurrent use.
type Program struct {
	source    string
	variables []string
	ast       *cel.Ast
	program   cel.Program
	timeout   time.Duration
}

// String is the expression.
func (p *Program) String() string { return p.source }

// EvalError is an evaluation that failed. It has no value in it.
type EvalError struct {
	// Line and Column count from 1, within the expression; 0 where they are not known.
	Line, Column int
	Message      string
	cause        error
}

// Error is line:column: message.
func (e *EvalError) Error() string {
	if e.Line == 0 {
		return "evaluate expression: " + e.Message
	}

	return fmt.Sprintf("evaluate expression: %d:%d: %s", e.Line, e.Column, e.Message)
}

// Unwrap is ErrCost, ErrTime, a context's error, or nil.
func (e *EvalError) Unwrap() error { return e.cause }

// Eval gives the value as map[string]any, []any, string, int64, float64, bool or nil. A
// timestamp is an RFC 3339 text, a duration a text such as 1m30s, an optional what is in
// it or nil. The error is an *EvalError.
func (p *Program) Eval(ctx context.Context, vars map[string]any) (any, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.timeout, ErrTime)
	defer cancel()

	value, _, err := p.program.ContextEval(ctx, vars)
	if err != nil {
		return nil, p.evalError(ctx, err)
	}

	out, err := native(value)
	if err != nil {
		return nil, &EvalError{Message: err.Error()}
	}

	return out, nil
}

// Bool is Eval for gates: a value that is not a bool is an error.
func (p *Program) Bool(ctx context.Context, vars map[string]any) (bool, error) {
	value, err := p.Eval(ctx, vars)
	if err != nil {
		return false, err
	}

	yes, ok := value.(bool)
	if !ok {
		kind := types.DefaultTypeAdapter.NativeToValue(value).Type().TypeName()

		return false, &EvalError{Message: fmt.Sprintf("yields %s, want a bool", strings.TrimSuffix(kind, "_type"))}
	}

	return yes, nil
}

// said are the errors of CEL that hold no value; what follows them is left out.
func said() []string {
	return []string{
		"no such key", "no such attribute", "no such overload", "no such field", "division by zero", "modulus by zero",
		"integer overflow", "unsigned integer overflow", "duration overflow", "timestamp overflow", "range error",
		"index out of bounds", "index out of range", "optional.none() dereference", "unsupported key type", "invalid argument",
		"got unexpected type", "type conversion error", "unexpected type", "no such type", "unsupported type conversion",
	}
}

// evalError takes the values out of an error: only the kind of error, and names that the
// expression itself has, stay.
func (p *Program) evalError(ctx context.Context, err error) *EvalError {
	text := err.Error()

	if strings.Contains(text, "actual cost limit exceeded") {
		return &EvalError{Message: ErrCost.Error(), cause: ErrCost}
	}

	if ctx.Err() != nil {
		cause := context.Cause(ctx)

		return &EvalError{Message: cause.Error(), cause: cause}
	}

	out := &EvalError{Message: "a function refused its arguments"}

	var ours *functionError
	if errors.As(err, &ours) {
		out.Message = ours.Error()
	} else if i := slices.IndexFunc(said(), func(one string) bool { return strings.Contains(text, one) }); i >= 0 {
		out.Message = said()[i]
		out.Message += p.named(text)
	}

	var at *types.Err
	if errors.As(err, &at) && at.NodeID() > 0 {
		location := p.ast.NativeRep().SourceInfo().GetStartLocation(at.NodeID())
		if location.Line() > 0 {
			out.Line, out.Column = location.Line(), location.Column()+1
		}
	}

	return out
}

var identifier = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*$`)

// named is the name that an error ends in, if it is one that the expression itself has.
func (p *Program) named(text string) string {
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

	word, err := regexp.Compile(`\b` + name + `\b`)
	if err != nil || !word.MatchString(p.source) {
		return ""
	}

	if strings.Contains(text, "no such key") {
		if ours := spelling()[name]; ours != "" {
			return ": " + name + ": conditions of the fleet API have " + ours + "; where it may be absent, write .?" + name
		}

		return ": " + name + ": where it may be absent, write .?" + name
	}

	return ": " + name
}

// spelling is how the fleet API spells fields that conditions of Kubernetes have, too.
func spelling() map[string]string {
	return map[string]string{"lastTransitionTime": "last_transition_time", "observedGeneration": "observed_generation"}
}

// Variables are the names of the variables that the expression reads, sorted. They are the
// program's own, and must not be changed.
func (p *Program) Variables() []string { return p.variables }

// Constant is the value of an expression that reads no variable and no clock; ok is false
// for others.
func (p *Program) Constant() (value any, ok bool) {
	if len(p.Variables()) > 0 {
		return nil, false
	}

	clocked := false

	ast.PostOrderVisit(p.ast.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() == ast.CallKind && slices.Contains([]string{"now", "conditionAge", "stableFor"}, e.AsCall().FunctionName()) {
			clocked = true
		}
	}))

	if clocked {
		return nil, false
	}

	value, err := p.Eval(context.Background(), map[string]any{})

	return value, err == nil
}
