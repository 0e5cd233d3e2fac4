// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package templates

import (
	"fmt"
	"math"
	"reflect"
)

// Upper bounds of what package fmt makes of one value, in bytes.
const (
	// perByte: a byte of a list as %b, and one of a text as % #x.
	perByte = 9
	// perScalar: a float64 as %f, with its type's name as %#v has it.
	perScalar = 400
	// perEscaped: a byte as \u0000 or &#34;.
	perEscaped = 6
	// maxNested is how deep values are looked into; deeper ones have no bound.
	maxNested = 50
	// maxWidth is the largest width and precision that fmt takes; it ignores larger ones.
	maxWidth = 1_000_000
	// unbounded is more than any budget, and can be multiplied without overflow.
	unbounded = math.MaxInt32
)

// extent is how much of a value there is to print.
type extent struct {
	bytes, scalars int
}

// extentOf counts the scalars of a value, and the bytes of its texts and names.
func extentOf(v reflect.Value, nested int) extent {
	if nested > maxNested {
		return extent{bytes: unbounded}
	}

	switch v.Kind() {
	case reflect.Invalid:
		return extent{scalars: 1}
	case reflect.String:
		return extent{bytes: v.Len(), scalars: 1}
	case reflect.Interface, reflect.Pointer:
		if v.IsNil() {
			return extent{scalars: 1}
		}

		return extentOf(v.Elem(), nested+1)
	case reflect.Slice, reflect.Array:
		return extentOfList(v, nested)
	case reflect.Map:
		out := extent{scalars: 1}

		for it := v.MapRange(); it.Next() && out.bytes < unbounded; {
			out = out.plus(extentOf(it.Key(), nested+1)).plus(extentOf(it.Value(), nested+1))
		}

		return out
	case reflect.Struct:
		out := extent{scalars: 1}
		for i := range v.NumField() {
			out = out.plus(extentOf(v.Field(i), nested+1)).plus(extent{bytes: len(v.Type().Field(i).Name)})
		}

		return out
	default:
		return extent{scalars: 1}
	}
}

func extentOfList(v reflect.Value, nested int) extent {
	if v.Type().Elem().Kind() == reflect.Uint8 {
		return extent{bytes: v.Len(), scalars: v.Len() + 1}
	}

	out := extent{scalars: 1}

	for i := 0; i < v.Len() && out.bytes < unbounded; i++ {
		out = out.plus(extentOf(v.Index(i), nested+1))
	}

	return out
}

func (e extent) plus(other extent) extent {
	return extent{bytes: min(e.bytes+other.bytes, unbounded), scalars: min(e.scalars+other.scalars, unbounded)}
}

// printed is the most bytes that one verb makes of it, with a width and a precision.
func (e extent) printed(width int) int {
	return saturated(e.bytes, perByte) + saturated(e.scalars, perScalar+2*width)
}

func saturated(a, b int) int {
	if a > 0 && b > unbounded/a {
		return unbounded
	}

	return a * b
}

// sizeOf is the most bytes that print makes of a value.
func sizeOf(v any) int {
	switch v := v.(type) {
	case nil:
		return len("<nil>")
	case string:
		return len(v)
	case bool, int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64:
		return len("-9223372036854775808")
	case fmt.Stringer:
		if p := reflect.ValueOf(v); p.Kind() == reflect.Pointer && p.IsNil() {
			return len("<nil>")
		}

		return len(v.String())
	default:
		return extentOf(reflect.ValueOf(v), 0).printed(0)
	}
}

// Size is the most bytes that printing all of the values makes.
func Size(values ...any) int {
	sum := 0
	for _, v := range values {
		sum = min(sum+sizeOf(v)+1, unbounded)
	}

	return sum
}

// formatted is the most bytes that printf makes: each verb may take the largest of its
// arguments, with the largest width there is.
func formatted(format string, args []any) int {
	verbs, width, number := 0, 0, 0

	for _, c := range []byte(format) {
		switch {
		case c >= '0' && c <= '9':
			number = min(number*10+int(c-'0'), maxWidth)
			width = max(width, number)

			continue
		case c == '%':
			verbs++
		case c == '*':
			width = max(width, largestInt(args))
		}

		number = 0
	}

	largest, all := 0, 0

	for _, arg := range args {
		one := extentOf(reflect.ValueOf(arg), 0).printed(width)
		largest, all = max(largest, one), min(all+one, unbounded)
	}

	// Arguments that no verb takes are printed as well.
	return len(format) + min(saturated(verbs, largest+perScalar+width)+all, unbounded)
}

func largestInt(args []any) int {
	out := 0

	for _, arg := range args {
		switch v := reflect.ValueOf(arg); {
		case v.CanInt():
			n := v.Int()
			out = max(out, int(min(max(n, -n), maxWidth)))
		case v.CanUint():
			out = max(out, int(min(v.Uint(), maxWidth))) //nolint:gosec // at most maxWidth
		}
	}

	return out
}
