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

// LoadSchemas reads an OpenAPI 3.0 document. It does not follow references to other files or hosts.
// If the path is empty, it returns nil.
func LoadSchemas(ctx context.Context, path string) (*openapi3.T, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // the document is optional
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
		return nil, fmt.Errorf("validate spec_schemas %s: %w", path, err)
	}

	return doc, nil
}

// FieldError is what is wrong with one field.
type FieldError = openapi.FieldError

// ValidateSpec returns the fields of a spec that violate the schema of its kind. If the kind has no
// schema, every spec is valid.
func (k *Kind) ValidateSpec(spec map[string]any) []FieldError {
	if k.schema == nil {
		return nil
	}

	if spec == nil {
		spec = map[string]any{}
	}

	return ConvertSchemaErrors("spec", k.schema.VisitJSON(spec, openapi3.MultiErrors(), openapi3.VisitAsRequest()))
}

// ConvertSchemaErrors converts an error of kin-openapi to errors by field. The messages contain no
// values, because these may be secret.
func ConvertSchemaErrors(root string, err error) []FieldError {
	if err == nil {
		return nil
	}

	if all, ok := err.(openapi3.MultiError); ok { //nolint:errorlint // the outermost error knows the field
		var out []FieldError
		for _, inner := range all {
			out = append(out, ConvertSchemaErrors(root, inner)...)
		}

		return out
	}

	var schema *openapi3.SchemaError
	if errors.As(err, &schema) {
		return []FieldError{{Field: FormatFieldPath(root, schema.JSONPointer()), Message: schema.Reason}}
	}

	return []FieldError{{Field: root, Message: err.Error()}}
}

// FormatFieldPath formats a JSON pointer as people write a path, for example spec.pools[1].size.
func FormatFieldPath(root string, pointer []string) string {
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
