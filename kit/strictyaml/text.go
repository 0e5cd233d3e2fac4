// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// settable says whether a value of the type can be written as one text, as in a variable.
func settable(kind reflect.Type) bool {
	switch kind.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int32, reflect.Int64, reflect.Float32, reflect.Float64:
		return true
	case reflect.Slice, reflect.Map:
		return kind == reflect.TypeFor[[]string]() || kind == reflect.TypeFor[map[string]string]()
	default:
		return false
	}
}

// wantOf says in words what values of a type look like.
func wantOf(kind reflect.Type) string {
	switch kind {
	case reflect.TypeFor[time.Duration]():
		return "a duration such as 30s or 5m"
	case reflect.TypeFor[[]string]():
		return "a list of texts"
	case reflect.TypeFor[map[string]string]():
		return "a map of texts"
	}

	switch kind.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a text (numbers in quotes)"
	case reflect.Float32, reflect.Float64:
		return "a number"
	default:
		return "a whole number"
	}
}

// fromText reads a value of a settable type as variables and flags have it: lists a,b and
// maps k=v,k2=v2. Whole numbers come as int64 that fits the type, others as float64.
func fromText(kind reflect.Type, text string) (any, error) {
	value, err := parseText(kind, text)
	if err != nil {
		return nil, fmt.Errorf("%q: want %s", text, wantOf(kind))
	}

	return value, nil
}

func parseText(kind reflect.Type, text string) (any, error) {
	switch kind {
	case reflect.TypeFor[time.Duration]():
		return time.ParseDuration(text)
	case reflect.TypeFor[[]string]():
		return list(text), nil
	case reflect.TypeFor[map[string]string]():
		return pairs(text)
	}

	switch kind.Kind() {
	case reflect.String:
		return text, nil
	case reflect.Bool:
		return strconv.ParseBool(text)
	case reflect.Float32, reflect.Float64:
		return strconv.ParseFloat(text, kind.Bits())
	default:
		return strconv.ParseInt(text, 10, kind.Bits())
	}
}

// list splits a,b; the empty text is the empty list.
func list(text string) []string {
	out := []string{}

	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}

	return out
}

var errPairs = errors.New("not k=v,k2=v2")

// pairs splits k=v,k2=v2.
func pairs(text string) (map[string]string, error) {
	out := map[string]string{}

	for _, item := range list(text) {
		key, value, ok := strings.Cut(item, "=")
		if !ok || key == "" {
			return nil, errPairs
		}

		out[key] = value
	}

	return out, nil
}

// Nearest returns "did you mean X?" for the known name that is closest to name, or nothing
// when none is close; of two that are as close, the first in the alphabet.
func Nearest(name string, known []string) string {
	known = slices.Sorted(slices.Values(known))
	best, bestDistance := "", len(name)/3+2

	for _, candidate := range known {
		if d := distance(strings.ToLower(name), strings.ToLower(candidate)); d < bestDistance {
			best, bestDistance = "did you mean "+candidate+"?", d
		}
	}

	return best
}

// distance is Levenshtein's.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}

	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1

		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}

			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}

	return row[len(b)]
}
