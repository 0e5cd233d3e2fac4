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

// isSettable returns whether a value of the type can be written as one string, as in an environment
// variable.
func isSettable(valueType reflect.Type) bool {
	switch valueType.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int32, reflect.Int64, reflect.Float32, reflect.Float64:
		return true
	case reflect.Slice, reflect.Map:
		return valueType == reflect.TypeFor[[]string]() || valueType == reflect.TypeFor[map[string]string]()
	default:
		return false
	}
}

// describeType returns a description of the values of a type, for error messages.
func describeType(valueType reflect.Type) string {
	switch valueType {
	case reflect.TypeFor[time.Duration]():
		return "a duration such as 30s or 5m"
	case reflect.TypeFor[[]string]():
		return "a list of strings"
	case reflect.TypeFor[map[string]string]():
		return "a map of strings"
	}

	switch valueType.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string (numbers in quotes)"
	case reflect.Float32, reflect.Float64:
		return "a number"
	default:
		return "a whole number"
	}
}

// parseValue parses the text of an environment variable or a flag as a value of a type for which
// isSettable is true. Lists have the form a,b and maps the form k=v,k2=v2. The result for an integer
// is an int64 whose value is in the range of the type. The result for another number is a float64.
func parseValue(valueType reflect.Type, text string) (any, error) {
	value, err := parseText(valueType, text)
	if err != nil {
		return nil, fmt.Errorf("%q: want %s", text, describeType(valueType))
	}

	return value, nil
}

// parseText is parseValue without the error message that describes the type.
func parseText(valueType reflect.Type, text string) (any, error) {
	switch valueType {
	case reflect.TypeFor[time.Duration]():
		return time.ParseDuration(text)
	case reflect.TypeFor[[]string]():
		return parseList(text), nil
	case reflect.TypeFor[map[string]string]():
		return parsePairs(text)
	}

	switch valueType.Kind() {
	case reflect.String:
		return text, nil
	case reflect.Bool:
		return strconv.ParseBool(text)
	case reflect.Float32, reflect.Float64:
		return strconv.ParseFloat(text, valueType.Bits())
	default:
		return strconv.ParseInt(text, 10, valueType.Bits())
	}
}

// parseList splits a,b. An empty text results in an empty list.
func parseList(text string) []string {
	out := []string{}

	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}

	return out
}

var errPairs = errors.New("not k=v,k2=v2")

// parsePairs splits k=v,k2=v2.
func parsePairs(text string) (map[string]string, error) {
	out := map[string]string{}

	for _, item := range parseList(text) {
		key, value, ok := strings.Cut(item, "=")
		if !ok || key == "" {
			return nil, errPairs
		}

		out[key] = value
	}

	return out, nil
}

// SuggestName returns "did you mean X?" for the known name that is closest to name, or "" if no
// known name is close. If two names are equally close, it suggests the first in alphabetical order.
func SuggestName(name string, known []string) string {
	known = slices.Sorted(slices.Values(known))
	best, bestDistance := "", len(name)/3+2

	for _, candidate := range known {
		if d := levenshtein(strings.ToLower(name), strings.ToLower(candidate)); d < bestDistance {
			best, bestDistance = "did you mean "+candidate+"?", d
		}
	}

	return best
}

// levenshtein returns the Levenshtein distance of two strings, in bytes.
func levenshtein(a, b string) int {
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
