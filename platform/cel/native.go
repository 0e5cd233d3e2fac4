// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cel

import (
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

const maxNativeDepth = 200

var (
	errDepth = errors.New("the value is nested too deeply")
	errNodes = fmt.Errorf("the value has more than %d values in it", maxNodes)
)

// maxNodes bounds the values in one: a list may hold the same one many times, and each
// becomes one of its own.
const maxNodes = 200_000

// converter makes plain values, and counts them.
type converter struct {
	nodes int
}

// native is a value as JSON knows it; errors hold no value.
func native(value ref.Val) (any, error) { return new(converter).native(value, 0) }

func (c *converter) native(value ref.Val, depth int) (any, error) {
	if depth > maxNativeDepth {
		return nil, errDepth
	}

	c.nodes++
	if c.nodes > maxNodes {
		return nil, errNodes
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
	case *types.Optional:
		return c.native(optional(typed), depth+1)
	case traits.Mapper:
		return c.nativeMap(typed, depth)
	case traits.Lister:
		return c.nativeList(typed, depth)
	case *types.Type:
		return typed.TypeName(), nil
	default:
		return nil, fmt.Errorf("a value of type %s has no JSON form", value.Type().TypeName())
	}
}

func (c *converter) nativeMap(value traits.Mapper, depth int) (any, error) {
	out := map[string]any{}

	for it := value.Iterator(); it.HasNext() == types.True; {
		key := it.Next()

		name, ok := key.ConvertToType(types.StringType).(types.String)
		if !ok {
			return nil, errors.New("a key of a map is not a text")
		}

		item, err := c.native(value.Get(key), depth+1)
		if err != nil {
			return nil, err
		}

		out[string(name)] = item
	}

	return out, nil
}

func (c *converter) nativeList(value traits.Lister, depth int) (any, error) {
	out := []any{}

	for it := value.Iterator(); it.HasNext() == types.True; {
		item, err := c.native(it.Next(), depth+1)
		if err != nil {
			return nil, err
		}

		out = append(out, item)
	}

	return out, nil
}
