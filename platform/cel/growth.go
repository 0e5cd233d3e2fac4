// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cel

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// The cost of a function is added up after it was called, which is too late where x is
// 1 MB and x.replace("a", x) wants 1 TB. So what a function could make is measured before.
const (
	// maxText is how many bytes a text may have that a function makes.
	maxText = 4 << 20
	// maxElements is how many elements a list may have that a function makes.
	maxElements = 100_000
	// perScalar is how many bytes a value takes in a text that is none itself: a number
	// with the largest precision of format.
	perScalar = 500
	// perNumber is how many a whole number takes.
	perNumber = 24
)

// growth is how much a call makes at most: bytes of a text, elements of a list.
type growth func(args []ref.Val) (bytes, elements int)

// growing are the functions whose result can be larger than what they are given.
func growing() map[string]growth {
	return map[string]growth{
		operators.Add: added,
		"replace":     replaced,
		"split":       func(args []ref.Val) (int, int) { return 0, parts(text(args, 0), text(args, 1)) },
		"join": func(args []ref.Val) (int, int) {
			return measure(args[0], plain) + length(args[0])*len(text(args, 1)), 0
		},
		"format": func(args []ref.Val) (int, int) {
			format, largest := text(args, 0), 0

			if list, ok := args[1].(traits.Lister); ok {
				for it := list.Iterator(); it.HasNext() == types.True; {
					largest = max(largest, measure(it.Next(), hexadecimal))
				}
			}

			return len(format) + strings.Count(format, "%")*largest, 0
		},
		"strings.quote": func(args []ref.Val) (int, int) { return 2 * len(text(args, 0)), 0 }, //nolint:mnd // as \"
		"flatten":       func(args []ref.Val) (int, int) { return 0, leaves(args[0], maxElements) },
		"toJson":        func(args []ref.Val) (int, int) { return measure(args[0], inJSON), 0 },
	}
}

// guarded has those functions refuse what would become too large.
func guarded(env *cel.Env) (cel.ProgramOption, error) {
	bindings := map[string]*functions.Overload{}

	for name := range growing() {
		found, err := env.Functions()[name].Bindings()
		if err != nil {
			return nil, fmt.Errorf("find function %s: %w", name, err)
		}

		for _, one := range found {
			bindings[one.Operator] = one
		}
	}

	return cel.CustomDecoratorV2(func(in interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
		call, ok := in.(interpreter.InterpretableCall)
		if !ok {
			return in, nil
		}

		size, ok := growing()[call.Function()]
		if !ok {
			return in, nil
		}

		binding, ok := bindings[call.OverloadID()]
		if !ok {
			binding, ok = bindings[call.Function()]
		}

		if !ok {
			return nil, fmt.Errorf("bound function %s: it has no implementation", call.Function())
		}

		return interpreter.NewCall(call.ID(), call.Function(), call.OverloadID(), call.Args(),
			func(args ...ref.Val) ref.Val { return invoke(call.Function(), binding, size, args) }), nil
	}), nil
}

func invoke(name string, binding *functions.Overload, size growth, args []ref.Val) ref.Val {
	bytes, elements := size(args)
	if bytes > maxText {
		return refuse("%s: the result would have more than %d bytes", shown(name), maxText)
	}

	if elements > maxElements {
		return refuse("%s: the result would have more than %d elements", shown(name), maxElements)
	}

	switch {
	case binding.OperandTrait != 0 && !args[0].Type().HasTrait(binding.OperandTrait):
		return types.MaybeNoSuchOverloadErr(args[0])
	case len(args) == 1 && binding.Unary != nil:
		return binding.Unary(args[0])
	case len(args) == 2 && binding.Binary != nil:
		return binding.Binary(args[0], args[1])
	case binding.Function != nil:
		return binding.Function(args...)
	default:
		return types.MaybeNoSuchOverloadErr(args[0])
	}
}

func shown(name string) string {
	if name == operators.Add {
		return "+"
	}

	return name
}

func added(args []ref.Val) (bytes, elements int) {
	switch args[0].(type) {
	case types.String, types.Bytes:
		return length(args[0]) + length(args[1]), 0
	case traits.Lister:
		return 0, length(args[0]) + length(args[1])
	default:
		return 0, 0
	}
}

func replaced(args []ref.Val) (bytes, elements int) {
	in, before, after := text(args, 0), text(args, 1), text(args, 2) //nolint:mnd // the third

	return len(in) + (parts(in, before)-1)*max(len(after)-len(before), 0), 0
}

// parts is how many there are of a text that is split.
func parts(in, separator string) int { return strings.Count(in, separator) + 1 }

func text(args []ref.Val, i int) string {
	if i >= len(args) {
		return ""
	}

	out, ok := args[i].(types.String)
	if !ok {
		return ""
	}

	return string(out)
}

// length is that of a text in bytes, of a list in elements.
func length(value ref.Val) int {
	switch typed := value.(type) {
	case types.String:
		return len(typed)
	case types.Bytes:
		return len(typed)
	case traits.Lister:
		if size, ok := typed.Size().(types.Int); ok {
			return int(size)
		}
	}

	return 0
}

// measure is how many bytes a value takes as a text; of a large one just that it is.
func measure(value ref.Val, size func(string) int) int {
	left := maxText
	take(value, size, &left, 0)

	return maxText - left
}

func take(value ref.Val, size func(string) int, left *int, depth int) {
	if *left < 0 {
		return
	}

	if depth > maxNativeDepth {
		*left = -1

		return
	}

	switch typed := value.(type) {
	case types.String:
		*left -= size(string(typed)) + len(`"",`)
	case types.Bytes:
		*left -= 2*len(typed) + len(`"",`) // base64
	case *types.Optional:
		take(optional(typed), size, left, depth+1)
	case traits.Mapper:
		for it := typed.Iterator(); *left >= 0 && it.HasNext() == types.True; {
			key := it.Next()
			take(key, size, left, depth+1)
			take(typed.Get(key), size, left, depth+1)
		}
	case traits.Lister:
		for it := typed.Iterator(); *left >= 0 && it.HasNext() == types.True; {
			take(it.Next(), size, left, depth+1)
		}
	case types.Null, types.Bool, types.Int, types.Uint:
		*left -= perNumber
	default:
		*left -= perScalar
	}
}

func plain(s string) int { return len(s) }

func hexadecimal(s string) int { return 2 * len(s) }

// inJSON is how long a text is in JSON at most.
func inJSON(s string) int {
	out := len(s)

	for _, c := range []byte(s) {
		switch {
		case c < ' ', c == '<', c == '>', c == '&', c == 0x7f:
			out += len(`\u0000`) - 1
		case c == '"', c == '\\':
			out++
		case c >= utf8.RuneSelf:
			// It may be invalid, and is written as \ufffd then.
			out += len(`\u0000`) - 1
		}
	}

	return out
}

// leaves is how many elements a list has when it is flat, up to one more than most.
func leaves(value ref.Val, most int) int {
	list, ok := value.(traits.Lister)
	if !ok {
		return 1
	}

	out := 0
	for it := list.Iterator(); out <= most && it.HasNext() == types.True; {
		out += leaves(it.Next(), most-out)
	}

	return out
}
