// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"fmt"
	"reflect"
	"strconv"
	"text/template/parse"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/hyperfleet/hyperfleet/kit/templates"
)

// methodOf is the name, after piped, of the function that stands for a field that may be a
// method: what executes templates calls none (ADR 0057).
const methodOf = "method"

// methodsOf are the methods of a time, and of what they give, as Go has them; no other value
// of a template has any. Nil: the value has none.
func methodsOf(value any, budget *templates.Budget) map[string]any {
	switch at := value.(type) {
	case instant:
		out := methodsOf(at.Time, budget)
		out["String"] = at.String

		return out
	case time.Time:
		return map[string]any{
			"Year": at.Year, "Month": at.Month, "Day": at.Day, "YearDay": at.YearDay, "Weekday": at.Weekday,
			"Hour": at.Hour, "Minute": at.Minute, "Second": at.Second, "Nanosecond": at.Nanosecond,
			"Unix": at.Unix, "UnixMilli": at.UnixMilli, "UnixMicro": at.UnixMicro, "UnixNano": at.UnixNano,
			"Add": at.Add, "AddDate": at.AddDate, "Sub": at.Sub, "Truncate": at.Truncate, "Round": at.Round,
			"After": at.After, "Before": at.Before, "Equal": at.Equal, "Compare": at.Compare, "IsZero": at.IsZero,
			"UTC": at.UTC, "String": at.String,
			"Format": func(layout string) (string, error) { return dateWithin(budget)(at, layout) },
		}
	case time.Duration:
		return map[string]any{
			"Hours": at.Hours, "Minutes": at.Minutes, "Seconds": at.Seconds, "Milliseconds": at.Milliseconds,
			"Microseconds": at.Microseconds, "Nanoseconds": at.Nanoseconds,
			"Abs": at.Abs, "Round": at.Round, "Truncate": at.Truncate, "String": at.String,
		}
	case fmt.Stringer:
		return map[string]any{"String": at.String}
	default:
		return nil
	}
}

// method calls the method of a value, or gives the value's field where it has no methods.
func method(budget *templates.Budget) func(value any, name string, args ...any) (any, error) {
	return func(value any, name string, args ...any) (any, error) {
		methods := methodsOf(value, budget)
		if methods == nil {
			return field(value, name, args)
		}

		function, ok := methods[name]
		if !ok {
			return nil, fmt.Errorf("can't evaluate field %s in type %T", name, value)
		}

		call := reflect.ValueOf(function)
		if want := call.Type().NumIn(); want != len(args) {
			return nil, fmt.Errorf("wrong number of args for %s: want %d got %d", name, want, len(args))
		}

		in := make([]reflect.Value, len(args))

		for i, arg := range args {
			var err error
			if in[i], err = argument(arg, call.Type().In(i)); err != nil {
				return nil, fmt.Errorf("call %s: %w", name, err)
			}
		}

		out := call.Call(in)
		if len(out) > 1 {
			if err, ok := out[1].Interface().(error); ok {
				return nil, err
			}
		}

		return out[0].Interface(), nil
	}
}

// argument is a value as an argument of a type: whole numbers are durations, too.
func argument(value any, want reflect.Type) (reflect.Value, error) {
	if at, ok := value.(instant); ok {
		value = at.Time
	}

	in := reflect.ValueOf(value)

	switch {
	case !in.IsValid():
		return in, fmt.Errorf("wrong type for value; expected %s; got null", want)
	case in.Type().AssignableTo(want):
		return in, nil
	case in.CanInt() && reflect.Zero(want).CanInt():
		return in.Convert(want), nil
	default:
		return in, fmt.Errorf("wrong type for value; expected %s; got %T", want, value)
	}
}

// field is a field of a map of JSON. Errors are those of Go's templates.
func field(value any, name string, args []any) (any, error) {
	fields, ok := value.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("can't evaluate field %s in type %T", name, value)
	}

	if len(args) > 0 {
		return nil, fmt.Errorf("%s is not a method but has arguments", name)
	}

	found, ok := fields[name]
	if !ok {
		return nil, fmt.Errorf("map has no entry for key %q", name)
	}

	return found, nil
}

// calls puts calls of the function in the place of a command's fields that may be methods.
func (w *walker) calls(command *parse.CommandNode) {
	for i, arg := range command.Args[1:] {
		if call := w.callOf(arg); call != nil {
			command.Args[1+i] = inParentheses(call)
		}
	}

	if call := w.callOf(command.Args[0]); call != nil {
		command.Args = append(call.Args, command.Args[1:]...)
	}
}

// callOf is the call that gives a node's last field. Nil: none of its fields can be a method.
func (w *walker) callOf(in parse.Node) *parse.CommandNode {
	value, names := w.split(in)

	var call *parse.CommandNode

	for _, name := range names {
		if call != nil {
			value = inParentheses(call)
		}

		call = &parse.CommandNode{NodeType: parse.NodeCommand, Pos: in.Position(), Args: []parse.Node{
			parse.NewIdentifier(piped + methodOf).SetPos(in.Position()).SetTree(nil), value,
			&parse.StringNode{NodeType: parse.NodeString, Pos: in.Position(), Quoted: strconv.Quote(name), Text: name},
		}}
	}

	return call
}

// split gives a node without the fields from the first on that can be a method, and those.
func (w *walker) split(in parse.Node) (value parse.Node, names []string) {
	switch typed := in.(type) {
	case *parse.FieldNode:
		// The dot itself is no time where it is all variables.
		from := firstMethod(typed.Ident)
		if from == 0 && w.atRoot {
			return in, nil
		}

		if from == 0 {
			return &parse.DotNode{NodeType: parse.NodeDot, Pos: typed.Pos}, typed.Ident
		}

		return &parse.FieldNode{NodeType: typed.NodeType, Pos: typed.Pos, Ident: typed.Ident[:from]}, typed.Ident[from:]
	case *parse.VariableNode:
		from := 1 + firstMethod(typed.Ident[1:])

		return &parse.VariableNode{NodeType: typed.NodeType, Pos: typed.Pos, Ident: typed.Ident[:from]}, typed.Ident[from:]
	case *parse.ChainNode:
		from := firstMethod(typed.Field)
		if from == 0 {
			return typed.Node, typed.Field
		}

		chain := parse.ChainNode{NodeType: typed.NodeType, Pos: typed.Pos, Node: typed.Node, Field: typed.Field[:from]}

		return &chain, typed.Field[from:]
	default:
		return in, nil
	}
}

// firstMethod is where the first name is that can be a method's: those start with a capital.
func firstMethod(names []string) int {
	for i, name := range names {
		if first, _ := utf8.DecodeRuneInString(name); unicode.IsUpper(first) {
			return i
		}
	}

	return len(names)
}

func inParentheses(call *parse.CommandNode) *parse.PipeNode {
	return &parse.PipeNode{NodeType: parse.NodePipe, Pos: call.Pos, Cmds: []*parse.CommandNode{call}}
}
