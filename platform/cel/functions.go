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

// maxDigParts limits the number of parts of a path of dig.
const maxDigParts = 32

// functionError is an error of a function of this package. Its text contains no value.
type functionError struct {
	text string
}

func (e *functionError) Error() string { return e.text }

func newFunctionError(format string, args ...any) ref.Val {
	return types.WrapErr(&functionError{text: fmt.Sprintf(format, args...)})
}

// newLibrary returns the functions that this package adds to CEL. The package documentation lists them.
func newLibrary(clk clock.PassiveClock) []cel.EnvOption {
	conditions := conditions{clock: clk}

	return []cel.EnvOption{
		cel.Function("now", cel.Overload("now_string", nil, cel.StringType, cel.FunctionBinding(func(...ref.Val) ref.Val {
			return types.String(clk.Now().UTC().Format(time.RFC3339))
		}))),
		cel.Function("string", cel.Overload("exact_number_to_string", []*cel.Type{newExactNumberType()}, cel.StringType,
			cel.UnaryBinding(func(value ref.Val) ref.Val { return value.ConvertToType(types.StringType) }))),
		cel.Function("toUnixTime", cel.MemberOverload("timestamp_to_unix_time", []*cel.Type{cel.TimestampType}, cel.IntType,
			cel.UnaryBinding(toUnixTime))),
		cel.Function("toJson", cel.Overload("to_json_dyn", []*cel.Type{cel.DynType}, cel.StringType, cel.UnaryBinding(toJSON))),
		cel.Function("dig",
			cel.Overload("dig_dyn_string", []*cel.Type{cel.DynType, cel.StringType}, cel.DynType,
				cel.BinaryBinding(func(value, path ref.Val) ref.Val { return digWithDefault(value, path, types.NullValue) })),
			cel.Overload("dig_dyn_string_dyn", []*cel.Type{cel.DynType, cel.StringType, cel.DynType}, cel.DynType,
				cel.FunctionBinding(func(args ...ref.Val) ref.Val { return digWithDefault(args[0], args[1], args[2]) }))),
		cel.Function("conditionStatus", cel.Overload("condition_status", []*cel.Type{cel.DynType, cel.StringType}, cel.StringType,
			cel.BinaryBinding(conditions.statusOf))),
		cel.Function("conditionAge", cel.Overload("condition_age", []*cel.Type{cel.DynType, cel.StringType}, cel.IntType,
			cel.BinaryBinding(conditions.ageOf))),
		cel.Function("stableFor", cel.Overload("stable_for", []*cel.Type{cel.DynType, cel.StringType, cel.IntType}, cel.BoolType,
			cel.FunctionBinding(func(args ...ref.Val) ref.Val { return conditions.isStableFor(args[0], args[1], args[2]) }))),
		cel.Function("statusFeedbackValue", cel.Overload("status_feedback_value", []*cel.Type{cel.DynType, cel.StringType},
			cel.StringType, cel.BinaryBinding(findFeedbackValue))),
		cel.Function("triState", cel.Overload("tri_state", []*cel.Type{cel.BoolType, cel.BoolType}, cel.StringType,
			cel.BinaryBinding(triState))),
	}
}

// newCostTrackers returns costs that grow with the size of a function's result or list argument,
// for functions that process their whole argument.
func newCostTrackers() []interpreter.CostTrackerOption {
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
	timestamp, ok := value.(types.Timestamp)
	if !ok {
		return types.MaybeNoSuchOverloadErr(value)
	}

	return types.Int(timestamp.Unix())
}

func toJSON(value ref.Val) ref.Val {
	plain, err := toNative(value)
	if err != nil {
		return newFunctionError("toJson: %v", err)
	}

	data, err := json.Marshal(plain)
	if err != nil {
		return newFunctionError("toJson: the value has no JSON form")
	}

	return types.String(data)
}

// digWithDefault returns the value at the path, or defaultValue if the path leads to no value. It
// returns an error value for a path of more than maxDigParts parts.
func digWithDefault(value, path, defaultValue ref.Val) ref.Val {
	text, ok := path.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(path)
	}

	parts := strings.Split(string(text), ".")
	if len(parts) > maxDigParts {
		return newFunctionError("dig: the path has more than %d parts", maxDigParts)
	}

	found, _ := dig(unwrapOptional(value), parts, new(int))
	if found == nil {
		return defaultValue
	}

	return found
}

// maxDigLookups limits how many keys dig looks up. A path can be split into keys in many ways if
// keys with dots occur beside keys without dots.
const maxDigLookups = 1000

// dig returns the value at the path, and false if the path leads to no value or dig has looked up
// maxDigLookups keys. It first looks up the whole path as one key, and then prefixes of the path,
// starting with the shortest.
func dig(value ref.Val, parts []string, tries *int) (found ref.Val, ok bool) {
	*tries++

	if *tries > maxDigLookups {
		return nil, false
	}

	if len(parts) == 0 {
		return value, true
	}

	if child, ok := findChild(value, strings.Join(parts, ".")); ok {
		return child, true
	}

	for i := 1; i < len(parts); i++ {
		next, ok := findChild(value, strings.Join(parts[:i], "."))
		if !ok {
			continue
		}

		if found, ok := dig(next, parts[i:], tries); ok {
			return found, true
		}
	}

	return nil, false
}

// findChild returns the value of a key of a map or of an index of a list, and false if there is none.
func findChild(value ref.Val, key string) (ref.Val, bool) {
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

// unwrapOptional returns the value inside an optional, or null if the optional is empty. It
// returns any other value unchanged.
func unwrapOptional(value ref.Val) ref.Val {
	opt, ok := value.(*types.Optional)
	if !ok {
		return value
	}

	if !opt.HasValue() {
		return types.NullValue
	}

	return opt.GetValue()
}

// findEntry returns the first map in the list whose key has the wanted value. It returns nil if
// no map matches or the list is null, and an error value if the argument is not a list.
func findEntry(list ref.Val, key string, want ref.Val) (traits.Mapper, ref.Val) {
	list = unwrapOptional(list)
	if list == types.NullValue {
		return nil, nil
	}

	items, ok := list.(traits.Lister)
	if !ok {
		return nil, newFunctionError("want a list, not %s", list.Type().TypeName())
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

// conditions implements the functions on lists of conditions, both of Kubernetes objects
// (lastTransitionTime) and of the fleet API (last_transition_time).
type conditions struct {
	clock clock.PassiveClock
}

const statusUnknown = types.String("Unknown")

func (conditions) statusOf(list, conditionType ref.Val) ref.Val {
	condition, err := findEntry(list, "type", conditionType)
	if err != nil {
		return err
	}

	if condition == nil {
		return statusUnknown
	}

	if status, ok := condition.Find(types.String("status")); ok && status.Type() == types.StringType {
		return status
	}

	return statusUnknown
}

// ageOf returns the seconds since the condition's last transition. It returns -1 if the list has
// no such condition or the condition has no last transition time.
func (c conditions) ageOf(list, conditionType ref.Val) ref.Val {
	condition, err := findEntry(list, "type", conditionType)
	if err != nil {
		return err
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

	transition, ok := value.ConvertToType(types.TimestampType).(types.Timestamp)
	if !ok {
		return newFunctionError("conditionAge: the last transition of the condition is not a time")
	}

	return types.Int(int64(c.clock.Now().Sub(transition.Time) / time.Second))
}

func (c conditions) isStableFor(list, conditionType, seconds ref.Val) ref.Val {
	status := c.statusOf(list, conditionType)
	if types.IsError(status) {
		return status
	}

	if status != types.String("True") {
		return types.False
	}

	age, ok := c.ageOf(list, conditionType).(types.Int)
	if !ok {
		return newFunctionError("stableFor: the last transition of the condition is not a time")
	}

	minAge, ok := seconds.(types.Int)
	if !ok {
		return types.MaybeNoSuchOverloadErr(seconds)
	}

	return types.Bool(age >= 0 && age >= minAge)
}

// findFeedbackValue returns a named value of a ManifestWork's statusFeedback as a string, or ""
// if the value is absent. The feedback is {values: [{name, fieldValue}]} or only the list of
// values. API: work.open-cluster-management.io/v1 FeedbackValue.
func findFeedbackValue(feedback, name ref.Val) ref.Val {
	feedback = unwrapOptional(feedback)
	if group, ok := feedback.(traits.Mapper); ok {
		values, found := group.Find(types.String("values"))
		if !found {
			return types.String("")
		}

		feedback = values
	}

	item, err := findEntry(feedback, "name", name)
	if err != nil {
		return err
	}

	if item == nil {
		return types.String("")
	}

	value, ok := item.Find(types.String("fieldValue"))
	if !ok {
		return types.String("")
	}

	for _, key := range []string{"string", "integer", "boolean", "jsonRaw"} {
		if typed, ok := findChild(value, key); ok && typed != types.NullValue {
			return typed.ConvertToType(types.StringType)
		}
	}

	return types.String("")
}

// triState returns the status of a condition: True if yes is true, else False if no is true, else Unknown.
func triState(yes, no ref.Val) ref.Val {
	switch {
	case yes == types.True:
		return types.String("True")
	case no == types.True:
		return types.String("False")
	default:
		return statusUnknown
	}
}

// Dig returns the value at the path in a plain Go value, as the CEL function dig does. It returns
// nil if the path leads to no value or has more than 32 parts.
func Dig(value any, path string) any {
	parts := strings.Split(path, ".")
	if len(parts) > maxDigParts {
		return nil
	}

	found, ok := dig(newAdapter().NativeToValue(value), parts, new(int))
	if !ok {
		return nil
	}

	plain, err := toNative(found)
	if err != nil {
		return nil
	}

	return plain
}
