// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cel

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/parser"
)

// maxShownExpression is the maximum length of a part of an expression in a message.
const maxShownExpression = 200

// explainTypes returns the types of the values that a failed call has read, and how to handle an absent one. If nodeID
// is 0, it does so for the first loop whose value is neither a list nor a map.
// It evaluates the expression again, because an evaluation that records its values takes longer. The text contains
// parts of the expression, and no values.
func (p *Program) explainTypes(ctx context.Context, vars map[string]any, nodeID int64) string {
	state := p.evaluateWithState(ctx, vars)
	if state == nil {
		return ""
	}

	expr, ok := p.findExpr(func(e ast.Expr) bool {
		if nodeID > 0 {
			return e.ID() == nodeID
		}

		// The position of a loop's error is not that of the loop.
		if e.Kind() != ast.ComprehensionKind {
			return false
		}

		value, isKnown := state(e.AsComprehension().IterRange())

		return isKnown && !value.Type().HasTrait(traits.IterableType)
	})
	if !ok {
		return ""
	}

	var (
		function string
		operands []ast.Expr
	)

	switch expr.Kind() {
	case ast.CallKind:
		call := expr.AsCall()
		function = call.FunctionName()

		if operands = slices.Clone(call.Args()); call.IsMemberFunction() {
			operands = append([]ast.Expr{call.Target()}, operands...)
		}
	case ast.ComprehensionKind:
		function, operands = "a loop", []ast.Expr{expr.AsComprehension().IterRange()}
	default:
		return ""
	}

	if name, ok := operators.FindReverse(function); ok && name != "" {
		function = name
	}

	var (
		typeNames []string
		hint      string
	)

	for _, operand := range operands {
		value, isKnown := state(operand)
		if !isKnown {
			return ""
		}

		typeNames = append(typeNames, nameType(value))

		if isAbsent(value) && hint == "" {
			hint = "; " + p.describe(operand) + " is absent: " + hintForAbsent(operand)
		}
	}

	if hint == "" && len(operands) > 1 {
		hint = ": convert one of them, for example with string(...), timestamp(...) or quantity(...)"
	}

	return fmt.Sprintf(": %s of %s", function, strings.Join(typeNames, " and ")) + hint
}

func (p *Program) findExpr(matches func(ast.Expr) bool) (ast.Expr, bool) {
	var out ast.Expr

	ast.PostOrderVisit(p.ast.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if out == nil && matches(e) {
			out = e
		}
	}))

	return out, out != nil
}

// evaluateWithState evaluates the expression. It returns a function that returns the value of a part of the
// expression, and false if the part has none. It returns nil if the expression can't be planned.
func (p *Program) evaluateWithState(ctx context.Context, vars map[string]any) func(ast.Expr) (ref.Val, bool) {
	tracked, err := p.env.plan(p.ast, cel.OptTrackState)
	if err != nil {
		return nil
	}

	_, details, _ := tracked.ContextEval(ctx, vars) // the error is the one to explain
	if details == nil {
		return nil
	}

	return func(e ast.Expr) (ref.Val, bool) {
		if e.Kind() == ast.LiteralKind {
			return e.AsLiteral(), true
		}

		value, ok := details.State().Value(e.ID())

		return value, ok && !types.IsUnknownOrError(value)
	}
}

func nameType(value ref.Val) string { return strings.TrimSuffix(value.Type().TypeName(), "_type") }

// isAbsent reports whether a value is null or an empty optional.
func isAbsent(value ref.Val) bool { return unwrapOptional(value) == types.NullValue }

// describe returns the text of a part of the expression.
func (p *Program) describe(e ast.Expr) string {
	text, err := parser.Unparse(e, p.ast.NativeRep().SourceInfo())
	if err != nil || len(text) > maxShownExpression {
		return "a value"
	}

	return text
}

// hintForAbsent returns how to write an operand whose value can be absent.
func hintForAbsent(operand ast.Expr) string {
	switch {
	case operand.Kind() == ast.CallKind && operand.AsCall().FunctionName() == "dig":
		return `pass the value to use instead as dig's third argument, or compare with null first`
	case operand.Kind() == ast.SelectKind:
		return "write .?" + operand.AsSelect().FieldName() + ".orValue(...)"
	default:
		return "compare with null first, or use .orValue(...)"
	}
}

// findPath returns the path that ends in a key that was not found, such as resources.job.status.conditions. It
// returns the key alone if the expression has several such paths.
func (p *Program) findPath(key string) string {
	var paths []string

	ast.PostOrderVisit(p.ast.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() == ast.SelectKind && e.AsSelect().FieldName() == key && !e.AsSelect().IsTestOnly() {
			paths = append(paths, p.describe(e))
		}
	}))

	slices.Sort(paths)

	if paths = slices.Compact(paths); len(paths) == 1 && paths[0] != "a value" {
		return paths[0]
	}

	return key
}
