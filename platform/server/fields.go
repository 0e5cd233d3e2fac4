// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/exactjson"
)

// topFields returns the fields of a resource. Only some of them have arbitrary fields below them.
func topFields() []string {
	return []string{
		"created_by", "created_time", "deleted_by", "deleted_time", "etag", "generation", "href", "id", "kind", "labels", "name",
		"owner_references", "references", "spec", "status", "tenancy", "updated_by", "updated_time",
	}
}

// selection is a tree of the fields to return. A nil selection means everything below that field.
type selection map[string]selection

func parseFields(text string) (selection, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil //nolint:nilnil // no selection: everything
	}

	out := selection{"id": nil}

	for field := range strings.SplitSeq(text, ",") {
		field = strings.TrimSpace(field)
		parts := strings.Split(field, ".")

		if slices.Contains(parts, "") || !slices.Contains(topFields(), parts[0]) {
			return nil, newQueryError("fields", fmt.Errorf("%q is not a field of resources", field))
		}

		out.add(parts)
	}

	return out, nil
}

// add selects the field with the path parts. If a field above it is already selected, add changes nothing.
func (s selection) add(parts []string) {
	child, isSelected := s[parts[0]]
	if isSelected && child == nil {
		return
	}

	if len(parts) == 1 {
		s[parts[0]] = nil

		return
	}

	if child == nil {
		child = selection{}
		s[parts[0]] = child
	}

	child.add(parts[1:])
}

func (s selection) selectFrom(value any) any {
	if s == nil {
		return value
	}

	switch typed := value.(type) {
	case map[string]any:
		out := map[string]any{}

		for name, child := range s {
			if found, isSet := typed[name]; isSet {
				out[name] = child.selectFrom(found)
			}
		}

		return out
	case []any:
		out := make([]any, len(typed))
		for i := range typed {
			out[i] = s.selectFrom(typed[i])
		}

		return out
	default:
		return value
	}
}

// toJSONValue converts a value to maps, slices and basic types by way of JSON (exactjson.Parse).
func toJSONValue(value any) (any, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}

	return exactjson.Parse(data)
}
