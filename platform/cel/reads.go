// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cel

import (
	"slices"
	"strings"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
)

// ListReads returns the paths below a variable that the expression reads. A path stands for everything below it, and an
// empty path for the whole variable. An expression that only asks which fields the variable has, such as
// variable.?field.hasValue(), reads no path.
//
// hasPlainKeys reports whether the keys of the value at a path have no dots. The path of dig is only followed as far as
// it returns true, because a key with dots could be meant after that.
func (p *Program) ListReads(variable string, hasPlainKeys func(path []string) bool) [][]string {
	r := reader{variable: variable, hasPlainKeys: hasPlainKeys}
	r.visit(p.ast.NativeRep().Expr())

	return r.paths
}

// FollowDig returns the path that dig, or Dig, reads for a text below a path, as ListReads does.
func FollowDig(path []string, text string, hasPlainKeys func(path []string) bool) []string {
	path = slices.Clone(path)

	for part := range strings.SplitSeq(text, ".") {
		if !hasPlainKeys(path) {
			break
		}

		path = append(path, part)
	}

	return path
}

type reader struct {
	variable     string
	hasPlainKeys func(path []string) bool
	paths        [][]string
}

// visit records the paths that an expression and all expressions in it read.
func (r *reader) visit(e ast.Expr) {
	if r.readsOnlyKeys(e) {
		return
	}

	if path, others, ok := r.follow(e); ok {
		r.paths = append(r.paths, path)
		r.visitAll(others)

		return
	}

	r.visitAll(listParts(e))
}

func (r *reader) visitAll(all []ast.Expr) {
	for _, e := range all {
		r.visit(e)
	}
}

// follow returns the path of a value below the variable, with the other expressions that its expression contains. It
// returns false if the expression is not such a value.
func (r *reader) follow(e ast.Expr) (path []string, others []ast.Expr, ok bool) {
	switch e.Kind() {
	case ast.IdentKind:
		return nil, nil, e.AsIdent() == r.variable
	case ast.SelectKind:
		if path, others, ok = r.follow(e.AsSelect().Operand()); ok {
			path = append(path, e.AsSelect().FieldName())
		}

		return path, others, ok
	case ast.CallKind:
		return r.followCall(e.AsCall())
	default:
		return nil, nil, false
	}
}

// followCall follows operators and functions that return a part of their operand, or the operand itself.
func (r *reader) followCall(call ast.CallExpr) (path []string, others []ast.Expr, ok bool) {
	name, args := call.FunctionName(), call.Args()

	switch {
	case call.IsMemberFunction() && (name == "orValue" || name == "value"):
		path, others, ok = r.follow(call.Target())

		return path, append(others, args...), ok
	case call.IsMemberFunction(), len(args) < 2:
		return nil, nil, false
	}

	key, isText := textOf(args[1])
	if !isText {
		return nil, nil, false
	}

	path, others, ok = r.follow(args[0])

	switch name {
	case operators.OptSelect, operators.Index, operators.OptIndex:
		return append(path, key), others, ok
	case "dig":
		return FollowDig(path, key, r.hasPlainKeys), append(others, args[2:]...), ok
	default:
		return nil, nil, false
	}
}

// readsOnlyKeys reports whether an expression only asks which fields the variable has.
func (r *reader) readsOnlyKeys(e ast.Expr) bool {
	isField := func(e ast.Expr, depth int) bool {
		path, others, ok := r.follow(e)

		return ok && len(path) == depth && len(others) == 0
	}

	if e.Kind() == ast.SelectKind {
		return e.AsSelect().IsTestOnly() && isField(e.AsSelect().Operand(), 0)
	}

	if e.Kind() != ast.CallKind {
		return false
	}

	call := e.AsCall()

	switch name, args := call.FunctionName(), call.Args(); {
	case call.IsMemberFunction():
		return name == "hasValue" && isField(call.Target(), 1) || name == "size" && isField(call.Target(), 0)
	case name == "size" && len(args) == 1:
		return isField(args[0], 0)
	case name == operators.In && len(args) == 2:
		_, isText := textOf(args[0])

		return isText && isField(args[1], 0)
	default:
		return false
	}
}

func textOf(e ast.Expr) (string, bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}

	text, ok := e.AsLiteral().(types.String)

	return string(text), ok
}

// listParts returns the expressions that an expression consists of.
func listParts(e ast.Expr) []ast.Expr {
	switch e.Kind() {
	case ast.CallKind:
		call := e.AsCall()
		if call.IsMemberFunction() {
			return append([]ast.Expr{call.Target()}, call.Args()...)
		}

		return call.Args()
	case ast.ComprehensionKind:
		loop := e.AsComprehension()

		return []ast.Expr{loop.IterRange(), loop.AccuInit(), loop.LoopCondition(), loop.LoopStep(), loop.Result()}
	case ast.ListKind:
		return e.AsList().Elements()
	case ast.MapKind:
		var out []ast.Expr
		for _, entry := range e.AsMap().Entries() {
			out = append(out, entry.AsMapEntry().Key(), entry.AsMapEntry().Value())
		}

		return out
	case ast.SelectKind:
		return []ast.Expr{e.AsSelect().Operand()}
	case ast.StructKind:
		var out []ast.Expr
		for _, field := range e.AsStruct().Fields() {
			out = append(out, field.AsStructField().Value())
		}

		return out
	default:
		return nil
	}
}
