// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cel

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	apiservercel "k8s.io/apiserver/pkg/cel"
)

const maxNativeDepth = 200

var (
	errTooDeep       = errors.New("the value is nested too deeply")
	errTooManyValues = fmt.Errorf("the value contains more than %d values", maxValues)
)

// maxValues limits the number of values inside one value. A list may contain the same value many
// times, and toNative copies each occurrence.
const maxValues = 200_000

// converter converts CEL values to plain Go values, and counts them.
type converter struct {
	count int
}

// toNative converts a CEL value to the Go value that api/exactjson would decode: map[string]any,
// []any, string, int64, float64, json.Number, bool or nil. Its errors contain no value.
func toNative(value ref.Val) (any, error) { return new(converter).convert(value, 0) }

// convert converts a CEL value to a value of a JSON document. Bytes become base64, and timestamps, durations and
// quantities become strings. It returns an error if the value is too deep or has too many parts.
func (c *converter) convert(value ref.Val, depth int) (any, error) {
	if depth > maxNativeDepth {
		return nil, errTooDeep
	}

	c.count++
	if c.count > maxValues {
		return nil, errTooManyValues
	}

	switch typed := value.(type) {
	case types.Null:
		return nil, nil //nolint:nilnil // null is a value
	case types.Bool:
		return bool(typed), nil
	case types.Int:
		return int64(typed), nil
	case types.Uint:
		return int64(typed), nil //nolint:gosec // numbers of JSON documents
	case types.Double:
		return float64(typed), nil
	case types.String:
		return string(typed), nil
	case types.Bytes:
		return base64.StdEncoding.EncodeToString(typed), nil
	case types.Timestamp:
		return typed.UTC().Format(time.RFC3339Nano), nil
	case types.Duration:
		return typed.String(), nil
	case apiservercel.Quantity:
		return typed.String(), nil
	case exactNumber:
		return json.Number(typed), nil
	case *types.Optional:
		return c.convert(unwrapOptional(typed), depth+1)
	case traits.Mapper:
		return c.convertMap(typed, depth)
	case traits.Lister:
		return c.convertList(typed, depth)
	case *types.Type:
		return typed.TypeName(), nil
	default:
		return nil, fmt.Errorf("a value of type %s has no JSON form", value.Type().TypeName())
	}
}

func (c *converter) convertMap(value traits.Mapper, depth int) (any, error) {
	out := map[string]any{}

	for it := value.Iterator(); it.HasNext() == types.True; {
		key := it.Next()

		name, ok := key.ConvertToType(types.StringType).(types.String)
		if !ok {
			return nil, errors.New("a key of a map is not a string")
		}

		item, err := c.convert(value.Get(key), depth+1)
		if err != nil {
			return nil, err
		}

		out[string(name)] = item
	}

	return out, nil
}

func (c *converter) convertList(value traits.Lister, depth int) (any, error) {
	out := []any{}

	for it := value.Iterator(); it.HasNext() == types.True; {
		item, err := c.convert(it.Next(), depth+1)
		if err != nil {
			return nil, err
		}

		out = append(out, item)
	}

	return out, nil
}
