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
	"k8s.io/apiserver/pkg/cel/library"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// Limits of every expression.
const (
	// MaxExpressionLength is the maximum length of an expression, in code points.
	MaxExpressionLength = 16 << 10
	// DefaultCostLimit limits the cost of one evaluation. Each step of an expression costs 1 or more.
	DefaultCostLimit = 1_000_000
	// DefaultTimeout limits the time of one evaluation. A long loop reaches this limit before the
	// cost limit, because adding up the cost takes longer with every step.
	DefaultTimeout = time.Second

	maxRecursion = 64
	maxNesting   = 4
	maxRangeSize = 1000
	// interruptCheckInterval is the number of loop steps between two checks of the timeout.
	interruptCheckInterval = 16
)

// Variable is a name that expressions may use.
type Variable struct {
	Name string
	// Type is the variable's type. Nil allows any type, which the evaluation checks.
	Type *cel.Type
	// Fields are the allowed fields of the variable, as in resources.NAME. Nil allows any field.
	// Compile returns an error for any other field.
	Fields []string
}

// NewDynVariables returns variables of any type with the given names.
func NewDynVariables(names ...string) []Variable {
	out := make([]Variable, len(names))
	for i, name := range names {
		out[i] = Variable{Name: name}
	}

	return out
}

// Options configure an Env.
type Options struct {
	Variables []Variable
	// ExtraOptions add the caller's own functions and macros.
	ExtraOptions []cel.EnvOption
	// Clock is the clock of now() and conditionAge(). Default: the real clock.
	Clock clock.PassiveClock
	// CostLimit limits the cost of one evaluation. Default: DefaultCostLimit.
	CostLimit uint64
	// Timeout limits the time of one evaluation. Default: DefaultTimeout.
	Timeout time.Duration
}

// Env compiles expressions. It is safe for concurrent use.
type Env struct {
	env       *cel.Env
	options   Options
	variables []string
}

// New creates an Env. It returns an error if the options are invalid.
func New(options Options) (*Env, error) {
	options.Clock = cmp.Or[clock.PassiveClock](options.Clock, clock.RealClock{})
	options.CostLimit = cmp.Or(options.CostLimit, DefaultCostLimit)
	options.Timeout = cmp.Or(options.Timeout, DefaultTimeout)

	opts := []cel.EnvOption{
		cel.CustomTypeAdapter(newAdapter()),
		cel.OptionalTypes(),
		ext.Strings(),
		ext.Lists(ext.ListsMaxRangeSize(maxRangeSize)),
		library.Quantity(),
		cel.ParserExpressionSizeLimit(MaxExpressionLength),
		cel.ParserRecursionLimit(maxRecursion),
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
		cel.ASTValidators(
			cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals(), cel.ValidateRegexLiterals(),
			cel.ValidateComprehensionNestingLimit(maxNesting),
		),
	}
	opts = append(opts, newLibrary(options.Clock)...)

	names := make([]string, 0, len(options.Variables))

	for _, variable := range options.Variables {
		celType := variable.Type
		if celType == nil {
			celType = cel.DynType
		}

		names = append(names, variable.Name)
		opts = append(opts, cel.Variable(variable.Name, celType))
	}

	env, err := cel.NewEnv(append(opts, options.ExtraOptions...)...)
	if err != nil {
		return nil, fmt.Errorf("create CEL environment: %w", err)
	}

	return &Env{env: env, options: options, variables: names}, nil
}

// Extend returns a new Env with additional variables, which replace variables of the same name.
func (e *Env) Extend(variables ...Variable) (*Env, error) {
	options := e.options
	options.Variables = slices.DeleteFunc(slices.Clone(options.Variables), func(old Variable) bool {
		return slices.ContainsFunc(variables, func(v Variable) bool { return v.Name == old.Name })
	})
	options.Variables = append(options.Variables, variables...)

	return New(options)
}

// CompileError lists all problems of an expression, with their positions in the expression.
type CompileError struct {
	Issues strictyaml.Problems
}

// Error returns all issues, without the text of the expression.
func (e *CompileError) Error() string {
	texts := make([]string, len(e.Issues))
	for i, issue := range e.Issues {
		texts[i] = issue.String()
	}

	return strings.Join(texts, "; ")
}

// newCompileError returns a *CompileError with one issue, at the start of the expression.
func newCompileError(format string, args ...any) error {
	return &CompileError{Issues: strictyaml.Problems{{Line: 1, Column: 1, Message: fmt.Sprintf(format, args...)}}}
}

// Compile parses and type-checks an expression. The error for an invalid expression is a *CompileError.
func (e *Env) Compile(expression string) (*Program, error) {
	if strings.TrimSpace(expression) == "" {
		return nil, newCompileError("the expression is empty")
	}

	checked, issues := e.env.Compile(expression)
	if issues.Err() != nil {
		return nil, e.convertIssues(expression, issues)
	}

	program := &Program{
		source: expression, variables: e.listVariables(checked), ast: checked, env: e, timeout: e.options.Timeout,
		hasLoop: contains(checked, func(e ast.Expr) bool { return e.Kind() == ast.ComprehensionKind }),
	}
	if found := e.findUnknownFields(checked); len(found) > 0 {
		return nil, &CompileError{Issues: found}
	}

	var err error
	if program.program, err = e.plan(checked, cel.OptOptimize); err != nil {
		return nil, newCompileError("%v", err)
	}

	return program, nil
}

// plan returns a program that evaluates an expression within the limits.
func (e *Env) plan(checked *cel.Ast, options ...cel.EvalOption) (cel.Program, error) {
	guards, err := limitArguments(e.env)
	if err != nil {
		return nil, fmt.Errorf("bound functions: %w", err)
	}

	return e.env.Program(checked, guards,
		cel.CostLimit(e.options.CostLimit), cel.CostTrackerOptions(newCostTrackers()...),
		cel.InterruptCheckFrequency(interruptCheckInterval), cel.EvalOptions(options...),
	)
}

// listVariables returns the sorted names of the declared variables that an expression reads.
func (e *Env) listVariables(checked *cel.Ast) []string {
	var out []string

	for _, reference := range checked.NativeRep().ReferenceMap() {
		// Variables of comprehensions have references as well, but are not declared.
		if slices.Contains(e.variables, reference.Name) {
			out = append(out, reference.Name)
		}
	}

	slices.Sort(out)

	return slices.Compact(out)
}

// CompileBool compiles an expression and returns an error if the expression can't yield a bool.
func (e *Env) CompileBool(expression string) (*Program, error) {
	program, err := e.Compile(expression)
	if err != nil {
		return nil, err
	}

	switch outputType := program.ast.OutputType(); {
	case outputType.IsExactType(cel.BoolType), outputType.IsExactType(cel.DynType):
		return program, nil
	default:
		return nil, newCompileError("yields %s, want a bool", outputType)
	}
}

func (e *Env) convertIssues(expression string, issues *cel.Issues) *CompileError {
	out := &CompileError{}

	// Unknown fields can be found in an expression that parses, even if its types don't match.
	if parsed, failed := e.env.Parse(expression); failed.Err() == nil {
		out.Issues = e.findUnknownFields(parsed)
	}

	for _, issue := range issues.Errors() {
		message, _, _ := strings.Cut(issue.Message, " (in container '')")
		problem := strictyaml.Problem{Line: max(issue.Location.Line(), 1), Column: issue.Location.Column() + 1, Message: message}

		if name, ok := strings.CutPrefix(message, "undeclared reference to '"); ok {
			name = strings.TrimSuffix(name, "'")
			problem.Message = "unknown variable or function " + name
			problem.Hint = strictyaml.SuggestName(name, e.listNames())
		}

		out.Issues = append(out.Issues, problem)
	}

	return out
}

// listNames returns the names of all variables, and of all functions that are not operators. In CEL,
// operators are functions with names such as _+_, -_, !_ and @in.
func (e *Env) listNames() []string {
	names := slices.Clone(e.variables)

	for name := range e.env.Functions() {
		if !strings.ContainsAny(name, "_@!-") {
			names = append(names, name)
		}
	}

	return names
}

// findUnknownFields returns a problem for each use of a field that a variable does not have.
func (e *Env) findUnknownFields(expression *cel.Ast) strictyaml.Problems {
	var out strictyaml.Problems

	for _, variable := range e.options.Variables {
		if variable.Fields == nil {
			continue
		}

		ast.PostOrderVisit(expression.NativeRep().Expr(), ast.NewExprVisitor(func(expr ast.Expr) {
			field, ok := parseFieldAccess(expr, variable.Name)
			if !ok || slices.Contains(variable.Fields, field) {
				return
			}

			location := expression.NativeRep().SourceInfo().GetStartLocation(expr.ID())
			out = append(out, strictyaml.Problem{
				Line: max(location.Line(), 1), Column: location.Column() + 1,
				Message: fmt.Sprintf("unknown %s.%s", variable.Name, field), Hint: strictyaml.SuggestName(field, variable.Fields),
			})
		}))
	}

	return out
}

// parseFieldAccess returns the name of the field if the expression is variable.field,
// variable.?field, variable["field"], variable[?"field"] or has(variable.field), and false otherwise.
func parseFieldAccess(e ast.Expr, variable string) (string, bool) {
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
