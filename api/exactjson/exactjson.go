// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package exactjson

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/json"
)

// Error says what is wrong with a part of a JSON document. It contains no values, because these may be
// secret.
type Error struct {
	// Path has the keys and indexes that lead to the place. It is empty for the whole document.
	Path []string
	// Problem is a clause without a subject, for example "is listed more than once".
	Problem string
}

// Error returns the place as a JSON pointer (RFC 6901), and the problem.
func (e *Error) Error() string {
	var pointer strings.Builder

	for _, part := range e.Path {
		pointer.WriteString("/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(part))
	}

	if pointer.Len() == 0 {
		return "the JSON document " + e.Problem
	}

	return pointer.String() + " " + e.Problem
}

// Parse decodes exactly one JSON document to maps, slices and basic types. A number becomes an int64 if it
// is written as an integer and fits, a float64 if this has exactly the same value, and a json.Number
// otherwise. Errors: *Error.
func Parse(data []byte) (any, error) {
	p := &parser{data: data, number: newNumber}

	return p.parse()
}

// Check returns the error that Parse returns for a document. It also calls reject for every string and every
// number (json.Number). If reject returns a problem, Check returns an error with this problem and the path of the value.
// Errors: *Error.
func Check(data []byte, reject func(value any) string) error {
	p := &parser{data: data, number: func(string) any { return nil }, reject: reject}
	_, err := p.parse()

	return err
}

// Unmarshal decodes exactly one JSON document into a value. Names of fields are case-sensitive. The value may
// be a pointer to a map or to an empty interface. Maps in other types keep the value of numbers only if their
// type is openapi.Object. Errors: *Error, and those of encoding/json for a value of the wrong type.
func Unmarshal(data []byte, into any) error {
	var err error

	switch typed := into.(type) {
	case *any:
		*typed, err = Parse(data)

		return err
	case *map[string]any:
		*typed, err = parseObject(data)

		return err
	}

	if err := Check(data, nil); err != nil {
		return err
	}

	return json.Unmarshal(data, into)
}

func parseObject(data []byte) (map[string]any, error) {
	value, err := Parse(data)
	if err != nil || value == nil {
		return nil, err
	}

	object, ok := value.(map[string]any)
	if !ok {
		return nil, &Error{Problem: "is not an object"}
	}

	return object, nil
}

// IsEqual returns true if two documents have the same value. The order of keys and the notation of numbers
// do not matter, so 1e2 equals 100.0.
func IsEqual(a, b []byte) bool {
	number := func(literal string) any { return parseDecimal(literal) }

	left, errLeft := (&parser{data: a, number: number}).parse()
	right, errRight := (&parser{data: b, number: number}).parse()

	return errors.Join(errLeft, errRight) == nil && isSame(left, right)
}

func isSame(a, b any) bool {
	switch left := a.(type) {
	case map[string]any:
		right, ok := b.(map[string]any)
		if !ok || len(left) != len(right) {
			return false
		}

		for key, value := range left {
			if other, found := right[key]; !found || !isSame(value, other) {
				return false
			}
		}

		return true
	case []any:
		right, ok := b.([]any)
		if !ok || len(left) != len(right) {
			return false
		}

		for i := range left {
			if !isSame(left[i], right[i]) {
				return false
			}
		}

		return true
	default:
		return a == b
	}
}

// newSyntaxError converts an error of encoding/json about the whole document.
func newSyntaxError(data []byte) *Error {
	var (
		value  stdjson.RawMessage
		syntax *stdjson.SyntaxError
	)

	err := stdjson.Unmarshal(data, &value)
	if !errors.As(err, &syntax) {
		return &Error{Problem: "is not valid JSON"}
	}

	before := data[:min(max(syntax.Offset, 1)-1, int64(len(data)))]
	line := 1 + bytes.Count(before, []byte("\n"))
	column := len(before) - bytes.LastIndexByte(before, '\n')

	switch {
	case strings.Contains(syntax.Error(), "unexpected end"):
		return &Error{Problem: "ends too early"}
	case strings.Contains(syntax.Error(), "after top-level value"):
		return &Error{Problem: fmt.Sprintf("ends before line %d, column %d: send one document", line, column)}
	default:
		return &Error{Problem: fmt.Sprintf("is not valid JSON at line %d, column %d", line, column)}
	}
}
