// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package templates

import (
	"fmt"
	"math"
	"reflect"
)

// Upper bounds of the output of package fmt for one value, in bytes.
const (
	// perByte is the bound for a byte, printed as %b in a list or as % #x in a text.
	perByte = 9
	// perScalar is the bound for a scalar. The longest output is a float64 as %f, with the name of its
	// type as in %#v.
	perScalar = 400
	// perEscaped is the bound for an escaped byte, such as \u0000 or &#34;.
	perEscaped = 6
	// maxDepth is the maximum depth to which values are measured. Deeper values count as unbounded.
	maxDepth = 50
	// maxWidth is the largest width and precision that fmt accepts. fmt ignores larger ones.
	maxWidth = 1_000_000
	// unbounded is larger than any budget, and can be multiplied by the bounds above without overflow.
	unbounded = math.MaxInt32
)

// extent is the amount of data that printing a value prints.
type extent struct {
	bytes, scalars int
}

// measure counts the scalars of a value, and the bytes of its texts and field names.
func measure(v reflect.Value, depth int) extent {
	if depth > maxDepth {
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

		return measure(v.Elem(), depth+1)
	case reflect.Slice, reflect.Array:
		return measureList(v, depth)
	case reflect.Map:
		out := extent{scalars: 1}

		for it := v.MapRange(); it.Next() && out.bytes < unbounded; {
			out = out.add(measure(it.Key(), depth+1)).add(measure(it.Value(), depth+1))
		}

		return out
	case reflect.Struct:
		out := extent{scalars: 1}
		for i := range v.NumField() {
			out = out.add(measure(v.Field(i), depth+1)).add(extent{bytes: len(v.Type().Field(i).Name)})
		}

		return out
	default:
		return extent{scalars: 1}
	}
}

func measureList(v reflect.Value, depth int) extent {
	// fmt prints a list of bytes as one text or as one number for each byte.
	if v.Type().Elem().Kind() == reflect.Uint8 {
		return extent{bytes: v.Len(), scalars: v.Len() + 1}
	}

	out := extent{scalars: 1}

	for i := 0; i < v.Len() && out.bytes < unbounded; i++ {
		out = out.add(measure(v.Index(i), depth+1))
	}

	return out
}

func (e extent) add(other extent) extent {
	return extent{bytes: min(e.bytes+other.bytes, unbounded), scalars: min(e.scalars+other.scalars, unbounded)}
}

// maxPrintedSize returns the maximum number of bytes that one verb prints for the extent. width is
// the larger of the width and the precision of the verb.
func (e extent) maxPrintedSize(width int) int {
	return saturatingMul(e.bytes, perByte) + saturatingMul(e.scalars, perScalar+2*width)
}

// saturatingMul multiplies two numbers, and returns unbounded if the product would be larger.
func saturatingMul(a, b int) int {
	if a > 0 && b > unbounded/a {
		return unbounded
	}

	return a * b
}

// maxSizeOf returns the maximum number of bytes that print prints for a value.
func maxSizeOf(v any) int {
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
		return measure(reflect.ValueOf(v), 0).maxPrintedSize(0)
	}
}

// MaxPrintedSize returns the maximum number of bytes that printing all values prints.
func MaxPrintedSize(values ...any) int {
	sum := 0
	for _, v := range values {
		sum = min(sum+maxSizeOf(v)+1, unbounded)
	}

	return sum
}

// maxFormattedSize returns the maximum number of bytes that printf prints. It assumes that each
// verb prints the largest argument with the largest width in the format or in the arguments.
func maxFormattedSize(format string, args []any) int {
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

	largest, total := 0, 0

	for _, arg := range args {
		size := measure(reflect.ValueOf(arg), 0).maxPrintedSize(width)
		largest, total = max(largest, size), min(total+size, unbounded)
	}

	// fmt also prints arguments that no verb uses.
	return len(format) + min(saturatingMul(verbs, largest+perScalar+width)+total, unbounded)
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
