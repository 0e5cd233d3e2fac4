// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cel

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
	"k8s.io/utils/clock"
)

// maxDigSteps bounds the parts of a path of dig.
const maxDigSteps = 32

// functionError is an error of a function of ours. Its text has no value in it.
type functionError struct {
	text string
}

func (e *functionError) Error() string { return e.text }

func refuse(format string, args ...any) ref.Val {
	return types.WrapErr(&functionError{text: fmt.Sprintf(format, args...)})
}

// library is the functions of ours; package cel's documentation lists them.
func library(clk clock.PassiveClock) []cel.EnvOption {
	conditions := conditions{clock: clk}

	return []cel.EnvOption{
		cel.Function("now", cel.Overload("now_string", nil, cel.StringType, cel.FunctionBinding(func(...ref.Val) ref.Val {
			return types.String(clk.Now().UTC().Format(time.RFC3339))
		}))),
		cel.Function("toUnixTime", cel.MemberOverload("timestamp_to_unix_time", []*cel.Type{cel.TimestampType}, cel.IntType,
			cel.UnaryBinding(toUnixTime))),
		cel.Function("toJson", cel.Overload("to_json_dyn", []*cel.Type{cel.DynType}, cel.StringType, cel.UnaryBinding(toJSON))),
		cel.Function("dig",
			cel.Overload("dig_dyn_string", []*cel.Type{cel.DynType, cel.StringType}, cel.DynType,
				cel.BinaryBinding(func(value, path ref.Val) ref.Val { return digOr(value, path, types.NullValue) })),
			cel.Overload("dig_dyn_string_dyn", []*cel.Type{cel.DynType, cel.StringType, cel.DynType}, cel.DynType,
				cel.FunctionBinding(func(args ...ref.Val) ref.Val { return digOr(args[0], args[1], args[2]) }))),
		cel.Function("conditionStatus", cel.Overload("condition_status", []*cel.Type{cel.DynType, cel.StringType}, cel.StringType,
			cel.BinaryBinding(conditions.status))),
		cel.Function("conditionAge", cel.Overload("condition_age", []*cel.Type{cel.DynType, cel.StringType}, cel.IntType,
			cel.BinaryBinding(conditions.age))),
		cel.Function("stableFor", cel.Overload("stable_for", []*cel.Type{cel.DynType, cel.StringType, cel.IntType}, cel.BoolType,
			cel.FunctionBinding(func(args ...ref.Val) ref.Val { return conditions.stableFor(args[0], args[1], args[2]) }))),
		cel.Function("statusFeedbackValue", cel.Overload("status_feedback_value", []*cel.Type{cel.DynType, cel.StringType},
			cel.StringType, cel.BinaryBinding(statusFeedbackValue))),
		cel.Function("triState", cel.Overload("tri_state", []*cel.Type{cel.BoolType, cel.BoolType}, cel.StringType,
			cel.BinaryBinding(triState))),
	}
}

// costs make functions that look at all of their argument cost as much.
func costs() []interpreter.CostTrackerOption {
	bySize := func(_ []ref.Val, result ref.Val) *uint64 {
		cost := uint64(1)
		if text, ok := result.(types.String); ok {
			cost += uint64(len(text)) / 10
		}

		return &cost
	}

	byList := func(args []ref.Val, _ ref.Val) *uint64 {
		cost := uint64(1)
		if list, ok := args[0].(traits.Sizer); ok {
			if size, ok := list.Size().(types.Int); ok && size > 0 {
				cost += uint64(size)
			}
		}

		return &cost
	}

	return []interpreter.CostTrackerOption{
		interpreter.OverloadCostTracker("to_json_dyn", bySize),
		interpreter.OverloadCostTracker("string_replace_string_string", bySize),
		interpreter.OverloadCostTracker("string_replace_string_string_int", bySize),
		interpreter.OverloadCostTracker("list_join", bySize),
		interpreter.OverloadCostTracker("list_join_string", bySize),
		interpreter.OverloadCostTracker("string_format", bySize),
		interpreter.OverloadCostTracker("strings_quote", bySize),
		interpreter.OverloadCostTracker("condition_status", byList),
		interpreter.OverloadCostTracker("condition_age", byList),
		interpreter.OverloadCostTracker("stable_for", byList),
		interpreter.OverloadCostTracker("status_feedback_value", byList),
	}
}

func toUnixTime(value ref.Val) ref.Val {
	at, ok := value.(types.Timestamp)
	if !ok {
		return types.MaybeNoSuchOverloadErr(value)
	}

	return types.Int(at.Unix())
}

func toJSON(value ref.Val) ref.Val {
	plain, err := native(value)
	if err != nil {
		return refuse("toJson: %v", err)
	}

	data, err := json.Marshal(plain)
	if err != nil {
		return refuse("toJson: the value has no JSON form")
	}

	return types.String(data)
}

func digOr(value, path, otherwise ref.Val) ref.Val {
	text, ok := path.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(path)
	}

	parts := strings.Split(string(text), ".")
	if len(parts) > maxDigSteps {
		return refuse("dig: the path has more than %d parts", maxDigSteps)
	}

	found, _ := dig(optional(value), parts, new(int))
	if found == nil {
		return otherwise
	}

	return found
}

// maxDigTries bounds how many keys are tried where keys with dots in them stand beside
// such without.
const maxDigTries = 1000

// dig looks for the whole rest of the path as one key, then for ever longer beginnings of
// it; nil where nothing is found.
func dig(value ref.Val, parts []string, tries *int) (found ref.Val, ok bool) {
	*tries++

	if *tries > maxDigTries {
		return nil, false
	}

	if len(parts) == 0 {
		return value, true
	}

	if child, ok := child(value, strings.Join(parts, ".")); ok {
		return child, true
	}

	for i := 1; i < len(parts); i++ {
		next, ok := child(value, strings.Join(parts[:i], "."))
		if !ok {
			continue
		}

		if found, ok := dig(next, parts[i:], tries); ok {
			return found, true
		}
	}

	return nil, false
}

// child is the value of a key of a map, or of an index of a list.
func child(value ref.Val, key string) (ref.Val, bool) {
	switch typed := value.(type) {
	case traits.Mapper:
		return typed.Find(types.String(key))
	case traits.Lister:
		index, err := strconv.Atoi(key)
		size, ok := typed.Size().(types.Int)

		if err != nil || !ok || index < 0 || int64(index) >= int64(size) {
			return nil, false
		}

		return typed.Get(types.Int(index)), true
	default:
		return nil, false
	}
}

// optional is what is in an optional, or null.
func optional(value ref.Val) ref.Val {
	opt, ok := value.(*types.Optional)
	if !ok {
		return value
	}

	if !opt.HasValue() {
		return types.NullValue
	}

	return opt.GetValue()
}

// entry is the element of a list of maps whose key has a value; nil where there is none,
// or the list is null.
func entry(list ref.Val, key string, want ref.Val) (traits.Mapper, ref.Val) {
	list = optional(list)
	if list == types.NullValue {
		return nil, nil
	}

	items, ok := list.(traits.Lister)
	if !ok {
		return nil, refuse("want a list, not %s", list.Type().TypeName())
	}

	for it := items.Iterator(); it.HasNext() == types.True; {
		item, ok := it.Next().(traits.Mapper)
		if !ok {
			continue
		}

		if value, ok := item.Find(types.String(key)); ok && value.Equal(want) == types.True {
			return item, nil
		}
	}

	return nil, nil
}

// conditions are the functions on lists of conditions, of Kubernetes objects
// (lastTransitionTime) and of the fleet API (last_transition_time).
type conditions struct {
	clock clock.PassiveClock
}

const unknown = types.String("Unknown")

func (conditions) status(list, kind ref.Val) ref.Val {
	condition, err := entry(list, "type", kind)
	if err != nil {
		return err
	}

	if condition == nil {
		return unknown
	}

	if status, ok := condition.Find(types.String("status")); ok && status.Type() == types.StringType {
		return status
	}

	return unknown
}

func (c conditions) age(list, kind ref.Val) ref.Val {
	condition, failed := entry(list, "type", kind)
	if failed != nil {
		return failed
	}

	if condition == nil {
		return types.Int(-1)
	}

	value, ok := condition.Find(types.String("last_transition_time"))
	if !ok {
		value, ok = condition.Find(types.String("lastTransitionTime"))
	}

	if !ok || value == types.NullValue {
		return types.Int(-1)
	}

	at, ok := value.ConvertToType(types.TimestampType).(types.Timestamp)
	if !ok {
		return refuse("conditionAge: the last transition of the condition is not a time")
	}

	return types.Int(int64(c.clock.Now().Sub(at.Time) / time.Second))
}

func (c conditions) stableFor(list, kind, seconds ref.Val) ref.Val {
	status := c.status(list, kind)
	if types.IsError(status) {
		return status
	}

	if status != types.String("True") {
		return types.False
	}

	age, ok := c.age(list, kind).(types.Int)
	if !ok {
		return refuse("stableFor: the last transition of the condition is not a time")
	}

	wanted, ok := seconds.(types.Int)
	if !ok {
		return types.MaybeNoSuchOverloadErr(seconds)
	}

	return types.Bool(age >= 0 && age >= wanted)
}

// statusFeedbackValue reads ManifestWork's statusFeedback, {values: [{name, fieldValue}]},
// or its list of values. API: work.open-cluster-management.io/v1 FeedbackValue.
func statusFeedbackValue(feedback, name ref.Val) ref.Val {
	feedback = optional(feedback)
	if group, ok := feedback.(traits.Mapper); ok {
		values, found := group.Find(types.String("values"))
		if !found {
			return types.String("")
		}

		feedback = values
	}

	item, failed := entry(feedback, "name", name)
	if failed != nil {
		return failed
	}

	if item == nil {
		return types.String("")
	}

	value, ok := item.Find(types.String("fieldValue"))
	if !ok {
		return types.String("")
	}

	for _, key := range []string{"string", "integer", "boolean", "jsonRaw"} {
		if typed, ok := child(value, key); ok && typed != types.NullValue {
			return typed.ConvertToType(types.StringType)
		}
	}

	return types.String("")
}

func triState(yes, no ref.Val) ref.Val {
	switch {
	case yes == types.True:
		return types.String("True")
	case no == types.True:
		return types.String("False")
	default:
		return unknown
	}
}

// Dig is the function dig on plain values; nil where nothing is found.
func Dig(value any, path string) any {
	parts := strings.Split(path, ".")
	if len(parts) > maxDigSteps {
		return nil
	}

	found, ok := dig(types.DefaultTypeAdapter.NativeToValue(value), parts, new(int))
	if !ok {
		return nil
	}

	plain, err := native(found)
	if err != nil {
		return nil
	}

	return plain
}
