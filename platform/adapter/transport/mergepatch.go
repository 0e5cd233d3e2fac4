// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/hyperfleet/hyperfleet/api/exactjson"
)

// CreateMergePatch returns the merge patch (RFC 7396) from one object to another. It keeps the value of every
// number. Libraries that compare numbers as float64 miss changes of integers above 2^53.
func CreateMergePatch(from, to map[string]any) (map[string]any, error) {
	patch := map[string]any{}

	for key, wanted := range to {
		current, found := from[key]
		currentObject, isObject := current.(map[string]any)
		wantedObject, wantsObject := wanted.(map[string]any)

		if isObject && wantsObject {
			inner, err := CreateMergePatch(currentObject, wantedObject)
			if err != nil {
				return nil, err
			}

			if len(inner) > 0 {
				patch[key] = inner
			}

			continue
		}

		isEqual, err := isEqualJSON(current, wanted)
		if err != nil {
			return nil, fmt.Errorf("compare %s: %w", key, err)
		}

		if !isEqual || !found && wanted != nil {
			patch[key] = wanted
		}
	}

	for key := range from {
		if _, found := to[key]; !found {
			patch[key] = nil
		}
	}

	return patch, nil
}

func isEqualJSON(a, b any) (bool, error) {
	left, errLeft := json.Marshal(a)
	right, errRight := json.Marshal(b)

	return exactjson.IsEqual(left, right), errors.Join(errLeft, errRight)
}

// ApplyMergePatch returns a copy of an object with a merge patch (RFC 7396) applied. It keeps the value of every number.
func ApplyMergePatch(object, patch map[string]any) (map[string]any, error) {
	var out, document map[string]any

	for _, decoded := range []struct {
		from map[string]any
		into *map[string]any
	}{{object, &out}, {patch, &document}} {
		data, err := json.Marshal(decoded.from)
		if err == nil {
			err = exactjson.Unmarshal(data, decoded.into)
		}

		if err != nil {
			return nil, fmt.Errorf("apply merge patch: %w", err)
		}
	}

	return mergeObjects(out, document), nil
}

func mergeObjects(object, patch map[string]any) map[string]any {
	if object == nil {
		object = map[string]any{}
	}

	for key, value := range patch {
		inner, isObject := value.(map[string]any)

		switch {
		case value == nil:
			delete(object, key)
		case isObject:
			current, _ := object[key].(map[string]any)
			object[key] = mergeObjects(current, inner)
		default:
			object[key] = value
		}
	}

	return object
}
