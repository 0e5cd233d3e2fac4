// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cel

import (
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// exactNumber is a number that neither int nor double holds exactly (api/exactjson). Expressions can pass it on, test it
// for equality, and convert it with string. All other uses are errors, because the result could be another number.
type exactNumber json.Number

// newExactNumberType returns the type of exactNumber. CEL compares types by their names.
func newExactNumberType() *types.Type { return types.NewOpaqueType("exactNumber") }

// ConvertToNative implements ref.Val.
func (n exactNumber) ConvertToNative(want reflect.Type) (any, error) {
	if reflect.TypeFor[json.Number]().AssignableTo(want) {
		return json.Number(n), nil
	}

	return nil, fmt.Errorf("type conversion error from '%s' to '%v'", newExactNumberType(), want)
}

// ConvertToType implements ref.Val.
func (n exactNumber) ConvertToType(want ref.Type) ref.Val {
	switch want {
	case types.StringType:
		return types.String(n)
	case types.TypeType:
		return newExactNumberType()
	default:
		return types.NewErr("type conversion error from '%s' to '%s'", newExactNumberType(), want)
	}
}

// Equal implements ref.Val.
func (n exactNumber) Equal(other ref.Val) ref.Val { return types.Bool(other == ref.Val(n)) }

// Type implements ref.Val.
func (exactNumber) Type() ref.Type { return newExactNumberType() }

// Value implements ref.Val.
func (n exactNumber) Value() any { return json.Number(n) }

// adapter converts Go values to CEL values, and keeps numbers exact.
type adapter struct{ types.Adapter }

// NativeToValue implements types.Adapter.
func (a adapter) NativeToValue(value any) ref.Val {
	switch typed := value.(type) {
	case json.Number:
		return exactNumber(typed)
	case map[string]any:
		return types.NewStringInterfaceMap(a, typed)
	case []any:
		return types.NewDynamicList(a, typed)
	default:
		return a.Adapter.NativeToValue(value)
	}
}

func newAdapter() adapter { return adapter{types.DefaultTypeAdapter} }
