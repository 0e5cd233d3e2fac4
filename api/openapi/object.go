// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"errors"

	"github.com/hyperfleet/hyperfleet/api/exactjson"
)

// Object is a JSON object with any fields. It keeps the value of every number (exactjson.Parse).
type Object map[string]any

// UnmarshalJSON decodes an object.
func (o *Object) UnmarshalJSON(data []byte) error {
	value, err := exactjson.Parse(data)
	if err != nil || value == nil {
		return err
	}

	object, ok := value.(map[string]any)
	if !ok {
		return errors.New("decode JSON: the value is not an object")
	}

	*o = object

	return nil
}
