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

// How many bytes functions make of one at most.
const (
	// perFolded: some letters take more bytes in another case.
	perFolded = 3
	// perQuoted: as \x00.
	perQuoted = 4
	// perLayout: an element of a layout is written as a longer text, as September for Jan.
	perLayout = 10
)

// piped is before the name of a function of textFirst that gets its text piped in, as its
// last argument; the parser of templates puts it there, authors can't.
const piped = "piped_"

// textFirst are the functions that take the text first.
func textFirst() []string {
	return []string{"replace", "trimPrefix", "trimSuffix", "contains", "hasPrefix", "hasSuffix"}
}

// instant is a time that is written as RFC 3339.
type instant struct {
	time.Time
}

// String is the time as RFC 3339.
func (i instant) String() string { return i.Format(time.RFC3339) }

// functions are those of templates; package task's documentation lists them.
func functions(clk clock.PassiveClock, budget *templates.Budget) template.FuncMap {
	made := func(growth int, f func(string) string) func(any) (string, error) {
		return func(v any) (string, error) {
			if err := budget.Room(growth * templates.Size(v)); err != nil {
				return "", err
			}

			return budget.Made(f(text(v)))
		}
	}

	replace := func(s, before, after any) (string, error) {
		if err := budget.Room(templates.Size(s, before, after)); err != nil {
			return "", err
		}

		in, from, to := text(s), text(before), text(after)

		if err := budget.Room(len(in) + strings.Count(in, from)*max(len(to)-len(from), 0)); err != nil {
			return "", err
		}

		return budget.Made(strings.ReplaceAll(in, from, to))
	}

	out := template.FuncMap{
		"now":        func() instant { return instant{clk.Now().UTC()} },
		"date":       dateWithin(budget),
		"dateFormat": dateWithin(budget),
		"lower":      made(perFolded, strings.ToLower),
		"upper":      made(perFolded, strings.ToUpper),
		"title":      made(perFolded, title),
		"trim":       made(1, strings.TrimSpace),
		"quote":      made(perQuoted, strconv.Quote),
		"default":    defaultTo,
		"int":        func(v any) (int, error) { n, err := whole(v); return int(n), err },
		"int64":      whole,
		"float":      float,
		"float64":    float,
		"string":     made(1, func(s string) string { return s }),
		"replace":    replace,
		piped + "replace": func(before, after, s any) (string, error) {
			return replace(s, before, after)
		},
		piped + methodOf: method(budget),
	}

	// Go ranges over numbers as well, and a large one would take for ever.
	out[piped+"ranged"] = func(v any) (any, error) {
		switch reflect.ValueOf(v).Kind() {
		case reflect.Invalid, reflect.Slice, reflect.Map:
			return v, nil
		default:
			return nil, errors.New("range wants a list or a map")
		}
	}

	// Everything that is printed goes through it: Go would print null as <no value>, and
	// large whole numbers out of JSON with an exponent.
	out[piped+"printed"] = func(v any) (any, error) {
		if v == nil {
			return nil, errNoValue
		}

		if _, ok := v.(float64); ok {
			return text(v), nil
		}

		return v, nil
	}

	both(out, budget, "trimPrefix", strings.TrimPrefix)
	both(out, budget, "trimSuffix", strings.TrimSuffix)
	both(out, budget, "contains", strings.Contains)
	both(out, budget, "hasPrefix", strings.HasPrefix)
	both(out, budget, "hasSuffix", strings.HasSuffix)

	return out
}

// both adds a function for the text as its first argument and for the text piped in.
func both[T any](out template.FuncMap, budget *templates.Budget, name string, function func(s, arg string) T) {
	call := func(s, arg any) (result T, err error) {
		if err := budget.Room(templates.Size(s, arg)); err != nil {
			return result, err
		}

		return function(text(s), text(arg)), nil
	}

	out[name] = call
	out[piped+name] = func(arg, s any) (T, error) { return call(s, arg) }
}

// text is a value as a template prints it; null is empty.
func text(value any) string {
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

func title(s string) string {
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

// dateWithin formats a time after a layout of Go, in either order.
func dateWithin(budget *templates.Budget) func(a, b any) (string, error) {
	return func(a, b any) (string, error) {
		if err := budget.Room(perLayout * templates.Size(a, b)); err != nil {
			return "", err
		}

		for _, try := range [][2]any{{a, b}, {b, a}} {
			if at, ok := timeOf(try[0]); ok {
				return budget.Made(at.Format(text(try[1])))
			}
		}

		return "", errors.New("want a time, as RFC 3339 or from now, and a layout such as 2006-01-02")
	}
}

func timeOf(value any) (time.Time, bool) {
	switch typed := value.(type) {
	case instant:
		return typed.Time, true
	case time.Time:
		return typed, true
	case string:
		at, err := time.Parse(time.RFC3339, typed)

		return at, err == nil
	default:
		return time.Time{}, false
	}
}

// defaultTo is the value, or the other where it is null, empty, zero or false.
func defaultTo(otherwise, value any) any {
	if value == nil || reflect.ValueOf(value).IsZero() {
		return otherwise
	}

	return value
}

func whole(value any) (int64, error) {
	switch typed := value.(type) {
	case int64:
		return typed, nil
	case int:
		return int64(typed), nil
	case float64:
		return int64(typed), nil
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

func float(value any) (float64, error) {
	if out, ok := number(value); ok {
		return out, nil
	}

	if typed, ok := value.(string); ok {
		if out, err := strconv.ParseFloat(strings.TrimSpace(typed), 64); err == nil {
			return out, nil
		}
	}

	return 0, errors.New("the value is not a number")
}
