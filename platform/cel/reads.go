// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cel

import (
	"strings"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
)

// ListReads returns the paths that the expression reads below a variable, which has Kubernetes objects by their name. A
// path stands for everything below it, and an empty path for the whole variable. An expression that only asks which objects
// there are, such as variable.?name.hasValue(), reads no path.
func (p *Program) ListReads(variable string) [][]string {
	var paths [][]string

	isVariable := func(e ast.NavigableExpr) bool { return e.Kind() == ast.IdentKind && e.AsIdent() == variable }

	for _, e := range ast.MatchDescendants(ast.NavigateAST(p.ast.NativeRep()), isVariable) {
		if path, isRead := follow(e); isRead {
			paths = append(paths, path)
		}
	}

	return paths
}

// FollowDig returns the path below the variable of ListReads that dig, or Dig, reads for a text. The names of objects, and
// the keys of an object and of its metadata, have no dots. What comes after them could be one key with dots.
func FollowDig(path []string, text string) []string {
	for part := range strings.SplitSeq(text, ".") {
		if part == "" || len(path) > 2 || len(path) == 2 && path[1] != "metadata" {
			break
		}

		path = append(path, part)
	}

	return path
}

// follow returns the path below a variable, from its use to the expression that uses the value at the path. It returns false
// if this expression only asks which fields the variable has.
func follow(e ast.NavigableExpr) (path []string, isRead bool) {
	for {
		parent, ok := e.Parent()

		switch {
		case ok && parent.Kind() == ast.SelectKind:
			if parent.AsSelect().IsTestOnly() && len(path) == 0 {
				return nil, false
			}

			path = append(path, parent.AsSelect().FieldName())
		case ok && parent.Kind() == ast.CallKind && asksForKeys(parent.AsCall(), e, len(path)):
			return nil, false
		case ok && parent.Kind() == ast.CallKind:
			var isPart bool
			if path, isPart = followCall(parent.AsCall(), e, path); !isPart {
				return path, true
			}
		default:
			return path, true
		}

		e = parent
	}
}

// asksForKeys reports whether a call only asks which fields the variable has. The depth is that of the path to an operand.
func asksForKeys(call ast.CallExpr, operand ast.Expr, depth int) bool {
	args := call.Args()

	switch name := call.FunctionName(); {
	case call.IsMemberFunction():
		return call.Target().ID() == operand.ID() && (name == "hasValue" && depth == 1 || name == "size" && depth == 0)
	case name == operators.In:
		_, isText := textOf(args[0])

		return isText && depth == 0
	default:
		return name == "size" && depth == 0
	}
}

// followCall returns the path of what a call returns, if this is the operand or a part of it. Otherwise, it returns what the call
// reads, and false.
func followCall(call ast.CallExpr, operand ast.Expr, path []string) (result []string, isPart bool) {
	name, args := call.FunctionName(), call.Args()

	if call.IsMemberFunction() {
		return path, call.Target().ID() == operand.ID() && (name == "orValue" || name == "value")
	}

	if len(args) == 1 || args[0].ID() != operand.ID() {
		return path, false
	}

	key, isText := textOf(args[1])

	switch {
	case isText && name == "dig":
		return FollowDig(path, key), false
	case isText && (name == operators.OptSelect || name == operators.Index || name == operators.OptIndex):
		return append(path, key), true
	default:
		return path, false
	}
}

func textOf(e ast.Expr) (string, bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}

	text, ok := e.AsLiteral().(types.String)

	return string(text), ok
}
