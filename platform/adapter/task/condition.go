// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Condition compares the value at a path.
type Condition struct {
	Field    Path
	Operator string
	// Value, or Values for in and notIn.
	Value  any
	Values []any
}

// Operators of conditions.
func operators() []string {
	return []string{
		"equals", "notEquals", "in", "notIn", "contains", "greaterThan", "greaterThanOrEqual", "lessThan", "lessThanOrEqual",
		"exists", "notExists",
	}
}

// Met says whether the condition holds. Values that can't be compared are an error, which
// does not hold them.
func (c Condition) Met(vars map[string]any) (bool, error) {
	value, ok := c.Field.Lookup(vars)

	switch c.Operator {
	case "exists":
		return ok, nil
	case "notExists":
		return !ok, nil
	case "equals":
		return same(value, c.Value), nil
	case "notEquals":
		return !same(value, c.Value), nil
	case "in":
		return slices.ContainsFunc(c.Values, func(one any) bool { return same(value, one) }), nil
	case "notIn":
		return !slices.ContainsFunc(c.Values, func(one any) bool { return same(value, one) }), nil
	case "contains":
		return c.contains(value)
	default:
		return c.ordered(value)
	}
}

// same compares values; whole numbers and others are the same if they are as much.
func same(a, b any) bool {
	left, leftNumber := number(a)
	right, rightNumber := number(b)

	if leftNumber && rightNumber {
		return left == right
	}

	return reflect.DeepEqual(a, b)
}

func number(value any) (float64, bool) {
	switch typed := value.(type) {
	case int64:
		return float64(typed), true
	case int:
		return float64(typed), true
	case float64:
		return typed, true
	default:
		return 0, false
	}
}

func (c Condition) contains(value any) (bool, error) {
	switch typed := value.(type) {
	case nil:
		return false, nil
	case string:
		part, ok := c.Value.(string)
		if !ok {
			return false, fmt.Errorf("condition on %s: contains on a text wants a text", c.Field)
		}

		return strings.Contains(typed, part), nil
	case []any:
		return slices.ContainsFunc(typed, func(one any) bool { return same(one, c.Value) }), nil
	case map[string]any:
		key, ok := c.Value.(string)
		_, has := typed[key]

		return ok && has, nil
	default:
		return false, fmt.Errorf("condition on %s: contains wants a text, a list or a map there", c.Field)
	}
}

// ordered compares numbers, times, or texts.
func (c Condition) ordered(value any) (bool, error) {
	if value == nil {
		return false, fmt.Errorf("condition on %s: there is no value to compare", c.Field)
	}

	order, ok := compare(value, c.Value)
	if !ok {
		return false, fmt.Errorf("condition on %s: %s wants two numbers, two times or two texts", c.Field, c.Operator)
	}

	return map[string]bool{
		"greaterThan": order > 0, "greaterThanOrEqual": order >= 0, "lessThan": order < 0, "lessThanOrEqual": order <= 0,
	}[c.Operator], nil
}

func compare(a, b any) (order int, ok bool) {
	left, leftNumber := number(a)
	right, rightNumber := number(b)

	if leftNumber && rightNumber {
		return cmp.Compare(left, right), true
	}

	leftText, leftOK := a.(string)
	rightText, rightOK := b.(string)

	leftTime, errLeft := time.Parse(time.RFC3339, leftText)
	rightTime, errRight := time.Parse(time.RFC3339, rightText)

	if errLeft != nil || errRight != nil {
		return strings.Compare(leftText, rightText), leftOK && rightOK
	}

	return leftTime.Compare(rightTime), true
}
