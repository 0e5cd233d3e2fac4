// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"

	template "github.com/DataDog/datadog-agent/pkg/template/text"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/templates"
)

// Maximum growth of a string in a function: bytes of the result for one byte of the argument.
const (
	// maxCaseGrowth is larger than 1 because some letters have more bytes in another case.
	maxCaseGrowth = 3
	// maxQuoteGrowth is the growth of a byte that is quoted as \x00.
	maxQuoteGrowth = 4
	// maxLayoutGrowth is larger than 1 because an element of a layout, such as Jan, can become a
	// longer string, such as September.
	maxLayoutGrowth = 10
)

// pipedPrefix is the prefix of internal functions. A function of textFirstFunctions has a second,
// internal version that takes the piped text as its last argument. The walker inserts the prefix.
const pipedPrefix = "piped_"

func textFirstFunctions() []string {
	return []string{"replace", "trimPrefix", "trimSuffix", "contains", "hasPrefix", "hasSuffix"}
}

// instant is a time that templates print in RFC 3339.
type instant struct {
	time.Time
}

// String returns the time in RFC 3339.
func (i instant) String() string { return i.Format(time.RFC3339) }

// newFunctions returns the functions of templates. The package documentation lists them.
func newFunctions(clk clock.PassiveClock, budget *templates.Budget) template.FuncMap {
	newTextFunc := func(growth int, f func(string) string) func(any) (string, error) {
		return func(v any) (string, error) {
			if err := budget.CheckWork(growth * templates.MaxPrintedSize(v)); err != nil {
				return "", err
			}

			return budget.CountWork(f(toText(v)))
		}
	}

	replace := func(s, before, after any) (string, error) {
		if err := budget.CheckWork(templates.MaxPrintedSize(s, before, after)); err != nil {
			return "", err
		}

		in, from, to := toText(s), toText(before), toText(after)

		if err := budget.CheckWork(len(in) + strings.Count(in, from)*max(len(to)-len(from), 0)); err != nil {
			return "", err
		}

		return budget.CountWork(strings.ReplaceAll(in, from, to))
	}

	out := template.FuncMap{
		"now":        func() instant { return instant{clk.Now().UTC()} },
		"date":       newDateFunc(budget),
		"dateFormat": newDateFunc(budget),
		"lower":      newTextFunc(maxCaseGrowth, strings.ToLower),
		"upper":      newTextFunc(maxCaseGrowth, strings.ToUpper),
		"title":      newTextFunc(maxCaseGrowth, toTitle),
		"trim":       newTextFunc(1, strings.TrimSpace),
		"quote":      newTextFunc(maxQuoteGrowth, strconv.Quote),
		"default":    withDefault,
		"int":        func(v any) (int, error) { n, err := toInt64(v); return int(n), err },
		"int64":      toInt64,
		"float":      toFloat64,
		"float64":    toFloat64,
		"string":     newTextFunc(1, func(s string) string { return s }),
		"replace":    replace,
		pipedPrefix + "replace": func(before, after, s any) (string, error) {
			return replace(s, before, after)
		},
	}

	// Go can range over numbers, and a range over a large number would not end.
	out[pipedPrefix+"ranged"] = func(v any) (any, error) {
		switch reflect.ValueOf(v).Kind() {
		case reflect.Invalid, reflect.Slice, reflect.Map:
			return v, nil
		default:
			return nil, errors.New("range needs a list or a map")
		}
	}

	// Every printed value passes through this function, because Go would print null as <no value>
	// and large whole numbers from JSON with an exponent.
	out[pipedPrefix+"printed"] = func(v any) (any, error) {
		if v == nil {
			return nil, errNoValue
		}

		if _, ok := v.(float64); ok {
			return toText(v), nil
		}

		return v, nil
	}

	out[pipedPrefix+slotFunction] = newSlotFunc(budget)

	addTextFunction(out, budget, "trimPrefix", strings.TrimPrefix)
	addTextFunction(out, budget, "trimSuffix", strings.TrimSuffix)
	addTextFunction(out, budget, "contains", strings.Contains)
	addTextFunction(out, budget, "hasPrefix", strings.HasPrefix)
	addTextFunction(out, budget, "hasSuffix", strings.HasSuffix)

	return out
}

// addTextFunction adds two versions of a function: with the text as the first argument, and with
// the text piped in as the last argument.
func addTextFunction[T any](out template.FuncMap, budget *templates.Budget, name string, function func(s, arg string) T) {
	call := func(s, arg any) (result T, err error) {
		if err := budget.CheckWork(templates.MaxPrintedSize(s, arg)); err != nil {
			return result, err
		}

		return function(toText(s), toText(arg)), nil
	}

	out[name] = call
	out[pipedPrefix+name] = func(arg, s any) (T, error) { return call(s, arg) }
}

// toText returns a value as a template prints it, and an empty string for null.
func toText(value any) string {
	switch typed := value.(type) {
	case nil:
		return ""
	case string:
		return typed
	case float64:
		if typed == math.Trunc(typed) && math.Abs(typed) < 1<<53 {
			return strconv.FormatInt(int64(typed), 10)
		}
	}

	return fmt.Sprint(value)
}

func toTitle(s string) string {
	before := ' '

	return strings.Map(func(c rune) rune {
		start := unicode.IsSpace(before)
		before = c

		if start {
			return unicode.ToTitle(c)
		}

		return c
	}, s)
}

// newDateFunc returns a function that formats a time with a Go layout. The function accepts the time
// and the layout in either order.
func newDateFunc(budget *templates.Budget) func(a, b any) (string, error) {
	return func(a, b any) (string, error) {
		if err := budget.CheckWork(maxLayoutGrowth * templates.MaxPrintedSize(a, b)); err != nil {
			return "", err
		}

		for _, args := range [][2]any{{a, b}, {b, a}} {
			if t, ok := parseTime(args[0]); ok {
				return budget.CountWork(t.Format(toText(args[1])))
			}
		}

		return "", errors.New("want a time (RFC 3339 or now) and a layout such as 2006-01-02")
	}
}

func parseTime(value any) (time.Time, bool) {
	switch typed := value.(type) {
	case instant:
		return typed.Time, true
	case time.Time:
		return typed, true
	case string:
		t, err := time.Parse(time.RFC3339, typed)

		return t, err == nil
	default:
		return time.Time{}, false
	}
}

// withDefault returns the value, or defaultValue if the value is null, empty, zero or false.
func withDefault(defaultValue, value any) any {
	if value == nil || reflect.ValueOf(value).IsZero() {
		return defaultValue
	}

	return value
}

func toInt64(value any) (int64, error) {
	switch typed := value.(type) {
	case int64:
		return typed, nil
	case int:
		return int64(typed), nil
	case float64:
		if math.Abs(typed) < 1<<63 {
			return int64(typed), nil
		}
	case bool:
		if typed {
			return 1, nil
		}

		return 0, nil
	case string:
		if number, err := strconv.ParseInt(strings.TrimSpace(typed), 10, 64); err == nil {
			return number, nil
		}
	}

	return 0, errors.New("the value is not a whole number")
}

func toFloat64(value any) (float64, error) {
	switch typed := value.(type) {
	case float64:
		return typed, nil
	case int64:
		return float64(typed), nil
	case int:
		return float64(typed), nil
	case string:
		if out, err := strconv.ParseFloat(strings.TrimSpace(typed), 64); err == nil {
			return out, nil
		}
	}

	return 0, errors.New("the value is not a number")
}
