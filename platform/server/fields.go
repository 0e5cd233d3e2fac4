// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/json"

	"github.com/hyperfleet/hyperfleet/api/openapi"
)

// topFields are the fields of a resource; only those below some of them are free.
func topFields() []string {
	return []string{
		"created_by", "created_time", "deleted_by", "deleted_time", "generation", "href", "id", "kind", "labels", "name",
		"owner_references", "references", "spec", "status", "tenancy", "updated_by", "updated_time",
	}
}

// selection is which fields to answer with: a tree, a leaf of which means all that is
// there.
type selection map[string]selection

// parseFields reads the query parameter fields; nil means all of them.
func parseFields(text *openapi.Fields) (selection, error) {
	if text == nil || strings.TrimSpace(*text) == "" {
		return nil, nil //nolint:nilnil // no selection: everything
	}

	out := selection{"id": nil}

	for field := range strings.SplitSeq(*text, ",") {
		field = strings.TrimSpace(field)
		parts := strings.Split(field, ".")

		if slices.Contains(parts, "") || !slices.Contains(topFields(), parts[0]) {
			return nil, badQuery("fields", fmt.Errorf("%q is not a field of resources", field))
		}

		out.add(parts)
	}

	return out, nil
}

func (s selection) add(parts []string) {
	below, there := s[parts[0]]
	if there && below == nil {
		return
	}

	if len(parts) == 1 {
		s[parts[0]] = nil

		return
	}

	if below == nil {
		below = selection{}
		s[parts[0]] = below
	}

	below.add(parts[1:])
}

// of takes the selected fields out of a value.
func (s selection) of(value any) any {
	if s == nil {
		return value
	}

	switch typed := value.(type) {
	case map[string]any:
		out := map[string]any{}

		for name, below := range s {
			if found, there := typed[name]; there {
				out[name] = below.of(found)
			}
		}

		return out
	case []any:
		out := make([]any, len(typed))
		for i := range typed {
			out[i] = s.of(typed[i])
		}

		return out
	default:
		return value
	}
}

// plain is a value as JSON has it, with whole numbers as int64.
func plain(value any) (any, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}

	var out any
	if err := json.Unmarshal(data, &out); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}

	return out, nil
}
