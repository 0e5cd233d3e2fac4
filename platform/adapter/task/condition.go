// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"encoding/json"
	"fmt"
	"math/big"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Condition compares the value at a path with a constant.
type Condition struct {
	Field    Path
	Operator string
	// Value is the value to compare with. The operators in and notIn use Values instead.
	Value  any
	Values []any
}

// operators returns the operators of conditions.
func operators() []string {
	return []string{
		"equals", "notEquals", "in", "notIn", "contains", "greaterThan", "greaterThanOrEqual", "lessThan", "lessThanOrEqual",
		"exists", "notExists",
	}
}

// IsMet reports whether the condition is met. It returns an error if the values can't be compared.
// The error does not contain the values.
func (c Condition) IsMet(vars map[string]any) (bool, error) {
	value, ok := c.Field.Lookup(vars)

	switch c.Operator {
	case "exists":
		return ok, nil
	case "notExists":
		return !ok, nil
	case "equals":
		return isEqual(value, c.Value), nil
	case "notEquals":
		return !isEqual(value, c.Value), nil
	case "in":
		return slices.ContainsFunc(c.Values, func(v any) bool { return isEqual(value, v) }), nil
	case "notIn":
		return !slices.ContainsFunc(c.Values, func(v any) bool { return isEqual(value, v) }), nil
	case "contains":
		return c.contains(value)
	default:
		return c.compareOrdered(value)
	}
}

// isEqual reports whether two values are equal. It compares integers and floats by their numeric value.
func isEqual(a, b any) bool {
	if order, ok := compareNumbers(a, b); ok {
		return order == 0
	}

	return reflect.DeepEqual(a, b)
}

// compareNumbers compares two numbers by their exact values. It returns false if one of them is not a number.
func compareNumbers(a, b any) (order int, ok bool) {
	left, isLeftNumber := toRat(a)
	right, isRightNumber := toRat(b)

	if !isLeftNumber || !isRightNumber {
		return 0, false
	}

	return left.Cmp(right), true
}

// largeExponent matches a number whose exponent has more than three digits. Its exact value would need too much memory.
var largeExponent = regexp.MustCompile(`[eE][+-]?\d{4}`)

// toRat returns the exact value of a number, and false for other values.
func toRat(value any) (*big.Rat, bool) {
	switch typed := value.(type) {
	case int64:
		return new(big.Rat).SetInt64(typed), true
	case int:
		return new(big.Rat).SetInt64(int64(typed)), true
	case float64:
		out := new(big.Rat).SetFloat64(typed)

		return out, out != nil
	case json.Number:
		if largeExponent.MatchString(typed.String()) {
			return nil, false
		}

		return new(big.Rat).SetString(typed.String())
	default:
		return nil, false
	}
}

func (c Condition) contains(value any) (bool, error) {
	switch typed := value.(type) {
	case nil:
		return false, nil
	case string:
		part, ok := c.Value.(string)
		if !ok {
			return false, fmt.Errorf("condition on %s: contains on a string needs a string value", c.Field)
		}

		return strings.Contains(typed, part), nil
	case []any:
		return slices.ContainsFunc(typed, func(item any) bool { return isEqual(item, c.Value) }), nil
	case map[string]any:
		key, ok := c.Value.(string)
		_, hasKey := typed[key]

		return ok && hasKey, nil
	default:
		return false, fmt.Errorf("condition on %s: contains needs a field with a string, a list or a map", c.Field)
	}
}

// compareOrdered applies the operators greaterThan, greaterThanOrEqual, lessThan and lessThanOrEqual
// to numbers, times or strings.
func (c Condition) compareOrdered(value any) (bool, error) {
	if value == nil {
		return false, fmt.Errorf("condition on %s: there is no value to compare", c.Field)
	}

	order, ok := compareValues(value, c.Value)
	if !ok {
		return false, fmt.Errorf("condition on %s: %s needs two numbers, two times or two strings", c.Field, c.Operator)
	}

	return map[string]bool{
		"greaterThan": order > 0, "greaterThanOrEqual": order >= 0, "lessThan": order < 0, "lessThanOrEqual": order <= 0,
	}[c.Operator], nil
}

func compareValues(a, b any) (order int, ok bool) {
	if order, ok := compareNumbers(a, b); ok {
		return order, true
	}

	leftText, isLeftText := a.(string)
	rightText, isRightText := b.(string)

	leftTime, errLeft := time.Parse(time.RFC3339, leftText)
	rightTime, errRight := time.Parse(time.RFC3339, rightText)

	if errLeft != nil || errRight != nil {
		return strings.Compare(leftText, rightText), isLeftText && isRightText
	}

	return leftTime.Compare(rightTime), true
}
