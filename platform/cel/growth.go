// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cel

import (
	"fmt"
	"regexp"
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

// CEL adds the cost of a function after the call. That is too late if x has 1 MB and
// x.replace("a", x) would allocate 1 TB. Therefore the size of a result is computed before the call.
const (
	// maxResultBytes is the maximum size of a string that a function returns.
	maxResultBytes = 4 << 20
	// maxResultElements is the maximum length of a list that a function returns.
	maxResultElements = 100_000
	// maxScalarSize is the maximum number of bytes of a formatted value that is neither a string
	// nor a whole number, such as a double with the largest precision that format allows.
	maxScalarSize = 500
	// maxNumberSize is the maximum number of bytes of a formatted null, bool or whole number.
	maxNumberSize = 24
)

// sizeFunc returns the maximum size of a call's result: bytes of a string, elements of a list.
type sizeFunc func(args []ref.Val) (bytes, elements int)

// sizedFunctions returns the functions whose result can be larger than their arguments.
func sizedFunctions() map[string]sizeFunc {
	return map[string]sizeFunc{
		operators.Add: measureAdd,
		"replace":     measureReplace,
		"split":       func(args []ref.Val) (int, int) { return 0, countParts(textArg(args, 0), textArg(args, 1)) },
		"join": func(args []ref.Val) (int, int) {
			return measureText(args[0], plainSize) + lengthOf(args[0])*len(textArg(args, 1)), 0
		},
		"format": func(args []ref.Val) (int, int) {
			format, largest := textArg(args, 0), 0

			if list, ok := args[1].(traits.Lister); ok {
				for it := list.Iterator(); it.HasNext() == types.True; {
					largest = max(largest, measureText(it.Next(), hexSize))
				}
			}

			return len(format) + strings.Count(format, "%")*largest, 0
		},
		"strings.quote": func(args []ref.Val) (int, int) { return 2 * len(textArg(args, 0)), 0 }, //nolint:mnd // a quote becomes \"
		"flatten":       func(args []ref.Val) (int, int) { return 0, countLeaves(args[0], maxResultElements) },
		"toJson":        func(args []ref.Val) (int, int) { return measureText(args[0], jsonSize), 0 },
	}
}

// argumentCheck returns an error value if a call with these arguments would need too much memory or time, and nil
// otherwise.
type argumentCheck func(name string, args []ref.Val) ref.Val

func checkedFunctions() map[string]argumentCheck {
	out := map[string]argumentCheck{"quantity": checkQuantity, "isQuantity": checkQuantity}
	for name, size := range sizedFunctions() {
		out[name] = size.check
	}

	return out
}

// check returns an error value if the result would be too large.
func (size sizeFunc) check(name string, args []ref.Val) ref.Val {
	bytes, elements := size(args)
	if bytes > maxResultBytes {
		return newFunctionError("%s: the result would have more than %d bytes", displayName(name), maxResultBytes)
	}

	if elements > maxResultElements {
		return newFunctionError("%s: the result would have more than %d elements", displayName(name), maxResultElements)
	}

	return nil
}

// maxQuantitySize is the maximum length of a quantity's text in bytes.
const maxQuantitySize = 64

// largeExponent matches a quantity whose exponent has more than two digits. Comparing 1e99999999 with another number
// would take minutes.
var largeExponent = regexp.MustCompile(`[eE][+-]?\d{3}`)

func checkQuantity(name string, args []ref.Val) ref.Val {
	if text := textArg(args, 0); len(text) > maxQuantitySize || largeExponent.MatchString(text) {
		return newFunctionError("%s: the text has more than %d bytes, or an exponent of more than two digits", name, maxQuantitySize)
	}

	return nil
}

// limitArguments makes the functions of checkedFunctions check their arguments before the call.
func limitArguments(env *cel.Env) (cel.ProgramOption, error) {
	bindings, checks := map[string]*functions.Overload{}, checkedFunctions()

	for name := range checks {
		found, err := env.Functions()[name].Bindings()
		if err != nil {
			return nil, fmt.Errorf("find function %s: %w", name, err)
		}

		for _, overload := range found {
			bindings[overload.Operator] = overload
		}
	}

	return cel.CustomDecoratorV2(func(in interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
		call, ok := in.(interpreter.InterpretableCall)
		if !ok {
			return in, nil
		}

		check, ok := checks[call.Function()]
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
			func(args ...ref.Val) ref.Val { return callChecked(call.Function(), binding, check, args) }), nil
	}), nil
}

func callChecked(name string, binding *functions.Overload, check argumentCheck, args []ref.Val) ref.Val {
	if err := check(name, args); err != nil {
		return err
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

func displayName(name string) string {
	if name == operators.Add {
		return "+"
	}

	return name
}

func measureAdd(args []ref.Val) (bytes, elements int) {
	switch args[0].(type) {
	case types.String, types.Bytes:
		return lengthOf(args[0]) + lengthOf(args[1]), 0
	case traits.Lister:
		return 0, lengthOf(args[0]) + lengthOf(args[1])
	default:
		return 0, 0
	}
}

func measureReplace(args []ref.Val) (bytes, elements int) {
	in, before, after := textArg(args, 0), textArg(args, 1), textArg(args, 2) //nolint:mnd // index of the third argument

	return len(in) + (countParts(in, before)-1)*max(len(after)-len(before), 0), 0
}

// countParts returns the number of parts into which the separator splits a string.
func countParts(in, separator string) int { return strings.Count(in, separator) + 1 }

func textArg(args []ref.Val, i int) string {
	if i >= len(args) {
		return ""
	}

	out, ok := args[i].(types.String)
	if !ok {
		return ""
	}

	return string(out)
}

// lengthOf returns the length of a string in bytes or of a list in elements, and 0 for other values.
func lengthOf(value ref.Val) int {
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

// measureText returns the number of bytes of a value as a string. It stops at the first value that
// exceeds maxResultBytes, so the result for a large value is only known to be larger than that.
func measureText(value ref.Val, size func(string) int) int {
	remaining := maxResultBytes
	subtractSize(value, size, &remaining, 0)

	return maxResultBytes - remaining
}

// subtractSize subtracts the size of a value as JSON from remaining. size returns the size of a string. It
// stops when remaining is negative, and makes remaining negative if the value is too deep.
func subtractSize(value ref.Val, size func(string) int, remaining *int, depth int) {
	if *remaining < 0 {
		return
	}

	if depth > maxNativeDepth {
		*remaining = -1

		return
	}

	switch typed := value.(type) {
	case types.String:
		*remaining -= size(string(typed)) + len(`"",`)
	case types.Bytes:
		*remaining -= 2*len(typed) + len(`"",`) // base64
	case *types.Optional:
		subtractSize(unwrapOptional(typed), size, remaining, depth+1)
	case traits.Mapper:
		for it := typed.Iterator(); *remaining >= 0 && it.HasNext() == types.True; {
			key := it.Next()
			subtractSize(key, size, remaining, depth+1)
			subtractSize(typed.Get(key), size, remaining, depth+1)
		}
	case traits.Lister:
		for it := typed.Iterator(); *remaining >= 0 && it.HasNext() == types.True; {
			subtractSize(it.Next(), size, remaining, depth+1)
		}
	case types.Null, types.Bool, types.Int, types.Uint:
		*remaining -= maxNumberSize
	default:
		*remaining -= maxScalarSize
	}
}

func plainSize(s string) int { return len(s) }

func hexSize(s string) int { return 2 * len(s) }

// jsonSize returns the maximum number of bytes of a string in JSON, without its quotes.
func jsonSize(s string) int {
	out := len(s)

	for _, c := range []byte(s) {
		switch {
		case c < ' ', c == '<', c == '>', c == '&', c == 0x7f:
			out += len(`\u0000`) - 1
		case c == '"', c == '\\':
			out++
		case c >= utf8.RuneSelf:
			// An invalid byte becomes \ufffd.
			out += len(`\u0000`) - 1
		}
	}

	return out
}

// countLeaves returns the number of elements of a flattened list. It stops counting after limit + 1.
func countLeaves(value ref.Val, limit int) int {
	list, ok := value.(traits.Lister)
	if !ok {
		return 1
	}

	out := 0
	for it := list.Iterator(); out <= limit && it.HasNext() == types.True; {
		out += countLeaves(it.Next(), limit-out)
	}

	return out
}
