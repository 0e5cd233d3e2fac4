// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cel

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/ext"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// Bounds on every expression.
const (
	// MaxExpression is how long an expression may be, in code points.
	MaxExpression = 16 << 10
	// DefaultCostLimit bounds one evaluation; a step of an expression costs 1 or more.
	DefaultCostLimit = 1_000_000
	// DefaultTimeout bounds one evaluation. Long loops end by it before they end by their
	// cost, as to add up the cost takes ever longer.
	DefaultTimeout = time.Second

	maxRecursion = 64
	maxNesting   = 4
	maxRange     = 1000
	// checkEvery is after how many steps of a loop the time is looked at.
	checkEvery = 16
)

// Variable is a name that expressions may use.
type Variable struct {
	Name string
	// Type is its type; nil: any, checked when it is evaluated.
	Type *cel.Type
	// Fields are the names it may be asked for, as in resources.NAME; nil: any. Others
	// are errors when an expression is compiled.
	Fields []string
}

// Dyn are variables of any type.
func Dyn(names ...string) []Variable {
	out := make([]Variable, len(names))
	for i, name := range names {
		out[i] = Variable{Name: name}
	}

	return out
}

// Options describe an Env.
type Options struct {
	Variables []Variable
	// Extra are functions and macros of the caller's own.
	Extra []cel.EnvOption
	// Clock is what now() and conditionAge() read. Default: the real one.
	Clock clock.PassiveClock
	// CostLimit of one evaluation. Default: DefaultCostLimit.
	CostLimit uint64
	// Timeout of one evaluation. Default: DefaultTimeout.
	Timeout time.Duration
}

// Env compiles expressions. It is safe for concurrent use.
type Env struct {
	env       *cel.Env
	options   Options
	variables []string
}

// New makes an Env; its error is about the options.
func New(options Options) (*Env, error) {
	options.Clock = cmp.Or[clock.PassiveClock](options.Clock, clock.RealClock{})
	options.CostLimit = cmp.Or(options.CostLimit, DefaultCostLimit)
	options.Timeout = cmp.Or(options.Timeout, DefaultTimeout)

	opts := []cel.EnvOption{
		cel.OptionalTypes(),
		ext.Strings(),
		ext.Lists(ext.ListsMaxRangeSize(maxRange)),
		cel.ParserExpressionSizeLimit(MaxExpression),
		cel.ParserRecursionLimit(maxRecursion),
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
		cel.ASTValidators(
			cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals(), cel.ValidateRegexLiterals(),
			cel.ValidateComprehensionNestingLimit(maxNesting),
		),
	}
	opts = append(opts, library(options.Clock)...)

	names := make([]string, 0, len(options.Variables))

	for _, variable := range options.Variables {
		kind := variable.Type
		if kind == nil {
			kind = cel.DynType
		}

		names = append(names, variable.Name)
		opts = append(opts, cel.Variable(variable.Name, kind))
	}

	env, err := cel.NewEnv(append(opts, options.Extra...)...)
	if err != nil {
		return nil, fmt.Errorf("make CEL environment: %w", err)
	}

	return &Env{env: env, options: options, variables: names}, nil
}

// Extend is an Env with more variables; one of the same name is replaced.
func (e *Env) Extend(variables ...Variable) (*Env, error) {
	options := e.options
	options.Variables = slices.DeleteFunc(slices.Clone(options.Variables), func(old Variable) bool {
		return slices.ContainsFunc(variables, func(v Variable) bool { return v.Name == old.Name })
	})
	options.Variables = append(options.Variables, variables...)

	return New(options)
}

// CompileError is everything wrong with an expression, with places within it.
type CompileError struct {
	Issues strictyaml.Problems
}

// Error gives all issues, without the text of the expression.
func (e *CompileError) Error() string {
	texts := make([]string, len(e.Issues))
	for i, issue := range e.Issues {
		texts[i] = strings.TrimPrefix(issue.String(), ":") // it is of no file
	}

	return strings.Join(texts, "; ")
}

// refused is an expression that is wrong as a whole.
func refused(format string, args ...any) error {
	return &CompileError{Issues: strictyaml.Problems{{Line: 1, Column: 1, Message: fmt.Sprintf(format, args...)}}}
}

// Compile checks an expression; its error is a *CompileError.
func (e *Env) Compile(expression string) (*Program, error) {
	if strings.TrimSpace(expression) == "" {
		return nil, refused("the expression is empty")
	}

	checked, issues := e.env.Compile(expression)
	if issues.Err() != nil {
		return nil, e.compileError(expression, issues)
	}

	program := &Program{source: expression, variables: e.read(checked), ast: checked, timeout: e.options.Timeout}
	if found := e.unknownFields(checked); len(found) > 0 {
		return nil, &CompileError{Issues: found}
	}

	guards, err := guarded(e.env)
	if err != nil {
		return nil, fmt.Errorf("bound functions: %w", err)
	}

	program.program, err = e.env.Program(checked, guards,
		cel.CostLimit(e.options.CostLimit), cel.CostTrackerOptions(costs()...), cel.InterruptCheckFrequency(checkEvery),
		cel.EvalOptions(cel.OptOptimize),
	)
	if err != nil {
		return nil, refused("%v", err)
	}

	return program, nil
}

// read are the names of the variables that an expression reads, sorted.
func (e *Env) read(checked *cel.Ast) []string {
	var out []string

	for _, reference := range checked.NativeRep().ReferenceMap() {
		// Variables of comprehensions have references, too, but are not declared.
		if slices.Contains(e.variables, reference.Name) {
			out = append(out, reference.Name)
		}
	}

	slices.Sort(out)

	return slices.Compact(out)
}

// CompileBool is Compile for an expression that has to yield a bool: one that can't is an
// error.
func (e *Env) CompileBool(expression string) (*Program, error) {
	program, err := e.Compile(expression)
	if err != nil {
		return nil, err
	}

	switch kind := program.ast.OutputType(); {
	case kind.IsExactType(cel.BoolType), kind.IsExactType(cel.DynType):
		return program, nil
	default:
		return nil, refused("yields %s, want a bool", kind)
	}
}

func (e *Env) compileError(expression string, issues *cel.Issues) *CompileError {
	out := &CompileError{}

	// Fields can be told without types.
	if parsed, failed := e.env.Parse(expression); failed.Err() == nil {
		out.Issues = e.unknownFields(parsed)
	}

	for _, issue := range issues.Errors() {
		message, _, _ := strings.Cut(issue.Message, " (in container '')")
		one := strictyaml.Problem{Line: max(issue.Location.Line(), 1), Column: issue.Location.Column() + 1, Message: message}

		if name, ok := strings.CutPrefix(message, "undeclared reference to '"); ok {
			name = strings.TrimSuffix(name, "'")
			one.Message = "unknown variable or function " + name
			one.Hint = strictyaml.Nearest(name, e.names())
		}

		out.Issues = append(out.Issues, one)
	}

	return out
}

// names are those of all variables and functions that have names.
func (e *Env) names() []string {
	names := slices.Clone(e.variables)

	for name := range e.env.Functions() {
		if !strings.ContainsAny(name, "_@!-") {
			names = append(names, name)
		}
	}

	return names
}

// unknownFields are uses of fields that a variable does not have.
func (e *Env) unknownFields(of *cel.Ast) strictyaml.Problems {
	var out strictyaml.Problems

	for _, variable := range e.options.Variables {
		if variable.Fields == nil {
			continue
		}

		ast.PostOrderVisit(of.NativeRep().Expr(), ast.NewExprVisitor(func(expr ast.Expr) {
			field, ok := fieldOf(expr, variable.Name)
			if !ok || slices.Contains(variable.Fields, field) {
				return
			}

			at := of.NativeRep().SourceInfo().GetStartLocation(expr.ID())
			out = append(out, strictyaml.Problem{
				Line: max(at.Line(), 1), Column: at.Column() + 1,
				Message: fmt.Sprintf("unknown %s.%s", variable.Name, field), Hint: strictyaml.Nearest(field, variable.Fields),
			})
		}))
	}

	return out
}

// fieldOf is the field, if the expression is variable.field, variable.?field,
// variable["field"], variable[?"field"] or has(variable.field).
func fieldOf(e ast.Expr, variable string) (string, bool) {
	isVariable := func(operand ast.Expr) bool { return operand.Kind() == ast.IdentKind && operand.AsIdent() == variable }

	switch e.Kind() {
	case ast.SelectKind:
		if isVariable(e.AsSelect().Operand()) {
			return e.AsSelect().FieldName(), true
		}
	case ast.CallKind:
		call := e.AsCall()
		if !slices.Contains([]string{operators.Index, operators.OptIndex, operators.OptSelect}, call.FunctionName()) {
			return "", false
		}

		if args := call.Args(); len(args) == 2 && isVariable(args[0]) && args[1].Kind() == ast.LiteralKind {
			if name, ok := args[1].AsLiteral().(types.String); ok {
				return string(name), true
			}
		}
	default:
	}

	return "", false
}
