// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package search

import (
	"slices"
	"strings"
)

// ParseOrder converts an order such as "name asc, created_time desc" to the SQL order for the table
// of resources with the alias r. The order is total: resources that are equal otherwise are
// ordered by id. An empty text means newest first. Errors: *Error.
func ParseOrder(text string) (string, error) {
	tokens, err := lex(text)
	if err != nil {
		return "", err
	}

	if tokens[0].kind == tokenEnd {
		return "r.created_time desc, r.id desc", nil
	}

	p := &parser{tokens: tokens}

	var (
		parts     []string
		direction string
		fields    []string
	)

	for {
		field := p.next()
		if field.kind != tokenWord || !slices.Contains(orderFields(), field.text) {
			return "", newTokenError(field, "expected a field to order by, one of "+strings.Join(orderFields(), ", "))
		}

		if slices.Contains(fields, field.text) {
			return "", &Error{Column: field.column, Message: field.text + " is listed more than once"}
		}

		fields = append(fields, field.text)

		direction = "asc"
		if p.accept("desc") {
			direction = "desc"
		} else {
			p.accept("asc")
		}

		parts = append(parts, formatOrderPart(field.text, direction))

		if !p.accept(",") {
			break
		}
	}

	if rest := p.peek(); rest.kind != tokenEnd {
		return "", newTokenError(rest, `expected "asc", "desc", a comma or the end`)
	}

	if !slices.Contains(fields, "id") {
		parts = append(parts, formatOrderPart("id", direction))
	}

	return strings.Join(parts, ", "), nil
}

func orderFields() []string {
	return []string{
		"id", "kind", "name", "generation", "created_time", "updated_time", "deleted_time",
		"created_by", "updated_by", "deleted_by",
	}
}

// formatOrderPart returns the SQL for one field. It contains no text of the caller, because the
// field is one of orderFields.
func formatOrderPart(field, direction string) string {
	switch field {
	case "kind", "name", "created_by", "updated_by", "deleted_by":
		field += ` collate "C"`
	}

	// Resources that are not being deleted come last, in both directions.
	if field == "deleted_time" {
		direction += " nulls last"
	}

	return "r." + field + " " + direction
}
