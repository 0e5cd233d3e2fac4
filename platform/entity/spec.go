// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package entity

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/hyperfleet/hyperfleet/api/openapi"
)

// LoadSchemas reads an OpenAPI 3.0 document. References to other files and hosts are not
// followed. An empty path is no document.
func LoadSchemas(ctx context.Context, path string) (*openapi3.T, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // no document, and that is in order
	}

	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read spec_schemas: %w", err)
	}

	loader := openapi3.NewLoader()
	loader.Context = ctx

	doc, err := loader.LoadFromData(data)
	if err != nil {
		return nil, fmt.Errorf("read spec_schemas %s: %w", path, err)
	}

	if err := doc.Validate(ctx); err != nil {
		return nil, fmt.Errorf("check spec_schemas %s: %w", path, err)
	}

	return doc, nil
}

// FieldError is what is wrong with one field.
type FieldError = openapi.FieldError

// CheckSpec says what is wrong with a spec by its kind's schema. A kind without one takes
// any.
func (k *Kind) CheckSpec(spec map[string]any) []FieldError {
	if k.schema == nil {
		return nil
	}

	if spec == nil {
		spec = map[string]any{}
	}

	return SchemaErrors("spec", k.schema.VisitJSON(spec, openapi3.MultiErrors(), openapi3.VisitAsRequest()))
}

// SchemaErrors makes errors by field out of one that kin-openapi gives. Values are left
// out: they may be secret.
func SchemaErrors(root string, err error) []FieldError {
	if err == nil {
		return nil
	}

	if all, ok := err.(openapi3.MultiError); ok { //nolint:errorlint // the outermost one knows the field
		var out []FieldError
		for _, one := range all {
			out = append(out, SchemaErrors(root, one)...)
		}

		return out
	}

	var schema *openapi3.SchemaError
	if errors.As(err, &schema) {
		return []FieldError{{Field: fieldPath(root, schema.JSONPointer()), Message: schema.Reason}}
	}

	return []FieldError{{Field: root, Message: err.Error()}}
}

// fieldPath writes a path as people do.
func fieldPath(root string, pointer []string) string {
	var out strings.Builder

	out.WriteString(root)

	for _, part := range pointer {
		switch {
		case part != "" && strings.Trim(part, "0123456789") == "":
			out.WriteString("[" + part + "]")
		case out.Len() == 0:
			out.WriteString(part)
		default:
			out.WriteString("." + part)
		}
	}

	return out.String()
}
