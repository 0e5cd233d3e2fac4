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

// methodFunction is the name, after pipedPrefix, of the function that replaces a field that may be
// a method. The template engine itself calls no methods (ADR 0057).
const methodFunction = "method"

// listMethods returns the methods that templates can call on a value: Go's methods of times,
// durations and other results of these methods. It returns nil if the value has no methods.
func listMethods(value any, budget *templates.Budget) map[string]any {
	switch v := value.(type) {
	case instant:
		out := listMethods(v.Time, budget)
		out["String"] = v.String

		return out
	case time.Time:
		return map[string]any{
			"Year": v.Year, "Month": v.Month, "Day": v.Day, "YearDay": v.YearDay, "Weekday": v.Weekday,
			"Hour": v.Hour, "Minute": v.Minute, "Second": v.Second, "Nanosecond": v.Nanosecond,
			"Unix": v.Unix, "UnixMilli": v.UnixMilli, "UnixMicro": v.UnixMicro, "UnixNano": v.UnixNano,
			"Add": v.Add, "AddDate": v.AddDate, "Sub": v.Sub, "Truncate": v.Truncate, "Round": v.Round,
			"After": v.After, "Before": v.Before, "Equal": v.Equal, "Compare": v.Compare, "IsZero": v.IsZero,
			"UTC": v.UTC, "String": v.String,
			"Format": func(layout string) (string, error) { return newDateFunc(budget)(v, layout) },
		}
	case time.Duration:
		return map[string]any{
			"Hours": v.Hours, "Minutes": v.Minutes, "Seconds": v.Seconds, "Milliseconds": v.Milliseconds,
			"Microseconds": v.Microseconds, "Nanoseconds": v.Nanoseconds,
			"Abs": v.Abs, "Round": v.Round, "Truncate": v.Truncate, "String": v.String,
		}
	case fmt.Stringer:
		return map[string]any{"String": v.String}
	default:
		return nil
	}
}

// newMethodFunc returns the template function that calls a method of a value. If the value has no
// methods, the function returns a field of the value. The budget limits the texts that Format returns.
func newMethodFunc(budget *templates.Budget) func(value any, name string, args ...any) (any, error) {
	return func(value any, name string, args ...any) (any, error) {
		methods := listMethods(value, budget)
		if methods == nil {
			return lookUpField(value, name, args)
		}

		method, ok := methods[name]
		if !ok {
			return nil, fmt.Errorf("can't evaluate field %s in type %T", name, value)
		}

		fn := reflect.ValueOf(method)
		if want := fn.Type().NumIn(); want != len(args) {
			return nil, fmt.Errorf("wrong number of args for %s: want %d got %d", name, want, len(args))
		}

		in := make([]reflect.Value, len(args))

		for i, arg := range args {
			var err error
			if in[i], err = convertArgument(arg, fn.Type().In(i)); err != nil {
				return nil, fmt.Errorf("call %s: %w", name, err)
			}
		}

		out := fn.Call(in)
		if len(out) > 1 {
			if err, ok := out[1].Interface().(error); ok {
				return nil, err
			}
		}

		return out[0].Interface(), nil
	}
}

// convertArgument converts a value to the type of a method's parameter. It converts between integer
// types, so that a whole number can be a duration.
func convertArgument(value any, want reflect.Type) (reflect.Value, error) {
	if i, ok := value.(instant); ok {
		value = i.Time
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

// lookUpField returns a field of a JSON object. Its errors have the texts of Go's templates.
func lookUpField(value any, name string, args []any) (any, error) {
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

// replaceMethods replaces the fields of a command that may be methods with calls of methodFunction.
func (w *walker) replaceMethods(command *parse.CommandNode) {
	for i, arg := range command.Args[1:] {
		if call := w.newMethodCall(arg); call != nil {
			command.Args[1+i] = parenthesize(call)
		}
	}

	if call := w.newMethodCall(command.Args[0]); call != nil {
		command.Args = append(call.Args, command.Args[1:]...)
	}
}

// newMethodCall returns the call of methodFunction that returns a node's last field, and nil if none
// of the node's fields can be a method.
func (w *walker) newMethodCall(in parse.Node) *parse.CommandNode {
	value, names := w.splitMethods(in)

	var call *parse.CommandNode

	for _, name := range names {
		if call != nil {
			value = parenthesize(call)
		}

		call = &parse.CommandNode{NodeType: parse.NodeCommand, Pos: in.Position(), Args: []parse.Node{
			parse.NewIdentifier(pipedPrefix + methodFunction).SetPos(in.Position()).SetTree(nil), value,
			&parse.StringNode{NodeType: parse.NodeString, Pos: in.Position(), Quoted: strconv.Quote(name), Text: name},
		}}
	}

	return call
}

// splitMethods splits the fields of a node at the first field that can be a method. It returns the
// node without the second part, and the names in the second part.
func (w *walker) splitMethods(in parse.Node) (value parse.Node, names []string) {
	switch typed := in.(type) {
	case *parse.FieldNode:
		// If the dot is the map of all variables, it is not a time and has no methods.
		from := indexOfMethod(typed.Ident)
		if from == 0 && w.dotIsRoot {
			return in, nil
		}

		if from == 0 {
			return &parse.DotNode{NodeType: parse.NodeDot, Pos: typed.Pos}, typed.Ident
		}

		return &parse.FieldNode{NodeType: typed.NodeType, Pos: typed.Pos, Ident: typed.Ident[:from]}, typed.Ident[from:]
	case *parse.VariableNode:
		from := 1 + indexOfMethod(typed.Ident[1:])

		return &parse.VariableNode{NodeType: typed.NodeType, Pos: typed.Pos, Ident: typed.Ident[:from]}, typed.Ident[from:]
	case *parse.ChainNode:
		from := indexOfMethod(typed.Field)
		if from == 0 {
			return typed.Node, typed.Field
		}

		chain := parse.ChainNode{NodeType: typed.NodeType, Pos: typed.Pos, Node: typed.Node, Field: typed.Field[:from]}

		return &chain, typed.Field[from:]
	default:
		return in, nil
	}
}

// indexOfMethod returns the index of the first name that starts with a capital letter and so can be
// a method. It returns len(names) if there is none.
func indexOfMethod(names []string) int {
	for i, name := range names {
		if first, _ := utf8.DecodeRuneInString(name); unicode.IsUpper(first) {
			return i
		}
	}

	return len(names)
}

func parenthesize(call *parse.CommandNode) *parse.PipeNode {
	return &parse.PipeNode{NodeType: parse.NodePipe, Pos: call.Pos, Cmds: []*parse.CommandNode{call}}
}
